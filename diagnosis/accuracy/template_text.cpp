#include "diagnosis/accuracy/template_text.h"

#include <filesystem>
#include <optional>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "text/util/checksum.h"

namespace tapestry::accuracy {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMostTemplateBytes = uintmax_t{1} << 26U;

std::string template_of_file(const std::string& file) {
  return template_mark(read_file(file, kMostTemplateBytes, "expected a template"));
}

}  // namespace

std::string template_mark(std::string_view text) { return concat("crc64 ", data::crc64(text)); }

std::string folder_template(const std::string& folder) {
  std::error_code error;
  if (const std::string jinja = folder + "/chat_template.jinja"; fs::exists(jinja, error)) {
    return template_of_file(jinja);
  }
  const std::string file = folder + "/tokenizer_config.json";
  if (!fs::exists(file, error)) {
    return {};
  }
  const auto json = nlohmann::json::parse(
      read_file(file, kMostTemplateBytes, "expected a tokenizer's configuration"), nullptr,
      /*allow_exceptions=*/false);
  check<IoError>(json.is_object(), file, ": is no JSON object");
  const auto found = json.find("chat_template");
  return found == json.end() || found->is_null() ? std::string()
         : found->is_string()                    ? template_mark(found->get<std::string>())
                                                 : template_mark(found->dump());
}

std::string run_template(const AllConfig& config) {
  if (const auto& file = config.dataset_config.chat_template) {
    return template_of_file(*file);
  }
  for (const std::optional<std::string>& folder :
       {config.dataset_config.tokenizer_model, config.model_config.from_hf}) {
    std::error_code error;
    if (folder && fs::is_directory(*folder, error)) {
      if (std::string mark = folder_template(*folder); !mark.empty()) {
        return mark;
      }
    }
  }
  return {};
}

}  // namespace tapestry::accuracy
