#include "interop/architectures/delta_net_tables.h"

#include <utility>

#include "interop/architectures/common_tables.h"

namespace tapestry::architectures {

namespace {

void append(std::vector<NamePair>& to, const std::vector<NamePair>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::vector<NamePair> common_rows() {
  return {{"attention.wq.", "self_attn.q_proj."},
          {"attention.wg.", "self_attn.q_proj."},
          {"linear_attention.conv_q.", "linear_attn.conv1d."},
          {"linear_attention.conv_k.", "linear_attn.conv1d."},
          {"linear_attention.conv_v.", "linear_attn.conv1d."},
          {"linear_attention.A_log.weight", "linear_attn.A_log"},
          {"linear_attention.dt_bias.weight", "linear_attn.dt_bias"},
          {"linear_attention.norm.", "linear_attn.norm."},
          {"linear_attention.wo.", "linear_attn.out_proj."}};
}

TensorNames names_of(const std::vector<NamePair>& rows, bool has_experts) {
  const std::vector<NamePair> expert = {
      {"w_gate.", "gate_proj."}, {"w_up.", "up_proj."}, {"w_down.", "down_proj."}};
  TensorNames names = llama_names_with(rows, has_experts ? "mlp.experts." : "",
                                       has_experts ? expert : std::vector<NamePair>());
  names.grouped_files.push_back({"self_attn.q_proj.", RowGroups::kHeads});
  return names;
}

}  // namespace

TensorNames qwen3_5_names(std::vector<NamePair> more, bool has_experts) {
  append(more, common_rows());
  append(more, {{"linear_attention.wq.", "linear_attn.in_proj_qkv."},
                {"linear_attention.wk.", "linear_attn.in_proj_qkv."},
                {"linear_attention.wv.", "linear_attn.in_proj_qkv."},
                {"linear_attention.wz.", "linear_attn.in_proj_z."},
                {"linear_attention.wb.", "linear_attn.in_proj_b."},
                {"linear_attention.wa.", "linear_attn.in_proj_a."}});
  return names_of(more, has_experts);
}

TensorNames qwen3_next_names() {
  std::vector<NamePair> rows = qwen_shared_expert_rows();
  append(rows, common_rows());
  append(rows, {{"linear_attention.wq.", "linear_attn.in_proj_qkvz."},
                {"linear_attention.wk.", "linear_attn.in_proj_qkvz."},
                {"linear_attention.wv.", "linear_attn.in_proj_qkvz."},
                {"linear_attention.wz.", "linear_attn.in_proj_qkvz."},
                {"linear_attention.wb.", "linear_attn.in_proj_ba."},
                {"linear_attention.wa.", "linear_attn.in_proj_ba."}});
  TensorNames names = names_of(rows, true);
  names.grouped_files.push_back({"linear_attn.in_proj_qkvz.", RowGroups::kLinearKeys});
  names.grouped_files.push_back({"linear_attn.in_proj_ba.", RowGroups::kLinearKeys});
  return names;
}

std::vector<NamePair> qwen_shared_expert_rows() {
  return {{"moe.router.", "mlp.gate."},
          {"moe.shared_expert_gate.", "mlp.shared_expert_gate."},
          {"moe.shared_expert.w_gate.", "mlp.shared_expert.gate_proj."},
          {"moe.shared_expert.w_up.", "mlp.shared_expert.up_proj."},
          {"moe.shared_expert.w_down.", "mlp.shared_expert.down_proj."}};
}

}  // namespace tapestry::architectures
