// The code of docs/tour.md, which explains it. Prints what the page shows; exits with 0 if the
// training loop has learnt its task.
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>

#include "autograd/eigen.h"
#include "autograd/io/tensor_io.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/print.h"
#include "autograd/tensor/rank_context.h"
#include "nn/data/data_loader.h"
#include "nn/layers/container.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "optim/adam.h"
#include "optim/grad_clip.h"
#include "optim/lr_scheduler.h"
#include "optim/schedule_curves.h"

using namespace tapestry;
using indexing::None;
using indexing::Slice;

void tensors() {
  const Tensor x = arange(6, kFloat32).view({2, 3});
  const Tensor w = tensor({1, 0, -1});
  std::cout << x << "\n";
  std::cout << x * w + 0.5 << "\n";   // broadcast over the rows
  std::cout << matmul(x, w) << "\n";  // free functions first
  std::cout << describe(x.t()) << ", mean " << mean(x).item() << "\n";

  const Tensor row = x.select(0, 1);  // a view: no copy
  mul_(row, 10);                      // in place, so x sees it
  std::cout << x << "\n";

  // x[:, None, 1:], and x[[1, 0], -1]
  std::cout << describe(x.index({Slice(), None, Slice(1, None)})) << " "
            << x.index({tensor(std::vector<int64_t>{1, 0}, {2}), -1}) << "\n";
  x.index_put_({gt(x, 30.0)}, 0.0);  // x[x > 30] = 0
  x += 1;
  std::cout << x << "\n";

  manual_seed(1);
  const Tensor once = randn({4});
  manual_seed(1);
  const Tensor again = randn({4});
  const Tensor fixed = randn({4}, kFloat64, RandomKey{.seed = 1, .stream = stream_of("noise")});
  std::cout << all(eq(once, again)) << " " << describe(fixed.to(kBFloat16)) << "\n";
}

void matrices() {
  Eigen::Matrix2d m;
  m << 4, 1, 1, 3;
  const Tensor a = tensor_view(m);    // shares m's memory
  eigen_matrix<double>(a)(0, 0) = 2;  // and Eigen sees the tensor's
  std::cout << m(0, 0) << "\n";

  a.set_requires_grad();
  const auto [eigenvalues, vectors] = eigh(a);
  log(eigenvalues.select(0, -1)).backward();
  std::cout << eigenvalues.detach() << "\n" << a.grad() << "\n";
  const Tensor batch = randn({8, 3, 3}, kFloat64) + 10 * eye(3, -1, kFloat64);
  std::cout << allclose(matmul(batch, inverse(batch)), eye(3, -1, kFloat64)) << "\n";
}

void batches() {
  const data::TensorDataset dataset({arange(10).view({5, 2}), arange(5)});
  const data::DataLoader loader(dataset, {.batch_size = 2, .shuffle = true, .seed = 1});
  for (const TensorList& batch : loader.epoch(0)) {
    std::cout << describe(batch[0]) << " " << describe(batch[1]) << "\n";
  }
}

void gradients() {
  const Tensor x = tensor({1, 2, 3});
  x.set_requires_grad();
  const Tensor loss = sum(x * x * x);
  loss.backward();
  std::cout << x.grad() << "\n";  // 3 x^2

  sum(2 * x).backward();  // gradients add up ...
  std::cout << x.grad() << "\n";
  x.set_grad({});  // ... until they are dropped

  const Tensor y = sum(x * x * x);
  const TensorList first = grad(y, {x}, {}, {.create_graph = true});
  const TensorList second = grad(sum(first[0]), {x});
  std::cout << second[0] << "\n";  // 6 x

  {
    const NoGradGuard guard;
    std::cout << (x * 2).requires_grad() << "\n";
  }
  std::cout << x.detach().requires_grad() << "\n";

  const Tensor h = x * 10;
  HookHandle limit = h.register_hook([](const Tensor& dh) { return clamp(dh, -1, 1); });
  sum(h * h).backward();
  std::cout << x.grad() << "\n";  // 10 times a gradient cut to 1
  limit.remove();                 // from here on there is no limit
}

void recompute() {
  const Tensor x = randn({8, 16});
  const Tensor w = randn({16, 16});
  w.set_requires_grad();
  const auto block = [&](const TensorList& in) { return gelu(matmul(gelu(matmul(in[0], w)), w)); };
  sum(checkpoint(block, {x})).backward();
  const Tensor from_checkpoint = w.grad();
  w.set_grad({});
  sum(block({x})).backward();
  std::cout << "same gradient: " << all(eq(w.grad(), from_checkpoint)) << "\n";
}

void threads() {
  const Tensor w = ones({2, 2});
  w.set_requires_grad();
  const auto model = [&](const Tensor& x) { return matmul(x, w); };
  const Tensor loss = sum(square(model(ones({1, 2}))));  // recorded here ...
  std::thread trainer([&] { loss.backward(); });         // ... and run backward there
  std::thread reader([&] {
    const NoGradGuard guard;  // of this thread
    std::cout << "recorded: " << model(ones({1, 2})).requires_grad() << "\n";
  });
  trainer.join();
  reader.join();
  std::cout << w.grad() << "\n";
}

/// y = x / (1 + |x|)
struct Softsign {
  static constexpr OpName name = "softsign";
  SavedTensor x;

  Tensor forward(const Tensor& input) {
    x.save(input);
    return input / (1 + abs(input));
  }
  Tensor backward(const Tensor& dy) const { return dy / square(1 + abs(x)); }
};

Tensor softsign(const Tensor& x) { return apply_op(Softsign{}, x); }

bool custom_op() {
  const Tensor x = randn({3, 4}, kFloat64);
  x.set_requires_grad();
  const auto function = [](const TensorList& in) { return TensorList{softsign(in[0])}; };
  const GradcheckResult first_order = gradcheck(function, {x});
  const GradcheckResult second_order = gradgradcheck(function, {x});
  std::cout << "gradcheck: " << first_order.passed << ", " << second_order.passed << "\n";
  return first_order.passed && second_order.passed;
}

/// x + W2 softsign(W1 norm(x))
class Block final : public nn::UnaryModule {
 public:
  Block(int64_t size, int64_t hidden)
      : norm_(register_module<nn::RMSNorm>("norm", size)),
        fc1_(register_module<nn::Linear>("fc1", size, hidden)),
        fc2_(register_module<nn::Linear>("fc2", hidden, size)) {}

  std::string type_name() const override { return "Block"; }
  Tensor forward(const Tensor& x) override { return x + fc2_(softsign(fc1_(norm_(x)))); }

 private:
  nn::RMSNorm& norm_;
  nn::Linear& fc1_;
  nn::Linear& fc2_;
};

nn::Sequential make_model() {
  return nn::Sequential(std::make_unique<nn::Linear>(2, 16), std::make_unique<Block>(16, 32),
                        std::make_unique<nn::Linear>(16, 2));
}

void custom_module() {
  nn::Sequential model = make_model();
  std::cout << model;
  for (const auto& [name, parameter] : model.named_parameters()) {
    std::cout << name << " " << parameter->shape() << (parameter->flags().decay ? "" : " no decay")
              << "\n";
  }
}

/// The optimizer of a model: what should not decay (biases, norms) is a group of its own.
optim::AdamW make_optimizer(const nn::Module& model) {
  optim::ParamGroup decay;
  optim::ParamGroup rest;
  rest.wd_mult = 0;
  for (const auto& [name, parameter] : model.named_parameters()) {
    optim::ParamGroup& group = parameter->flags().decay ? decay : rest;
    group.params.push_back(*parameter);
    group.names.push_back(name);
  }
  return optim::AdamW({decay, rest}, {.beta2 = 0.95});
}

bool training() {
  // Is a point inside the circle?
  const Tensor x = uniform(-1, 1, {256, 2});
  const Tensor labels = lt(sum(square(x), {-1}), 0.5).to(kInt64);

  nn::Sequential model = make_model();
  optim::AdamW optimizer = make_optimizer(model);
  const int64_t steps = 100;
  const optim::ComposedSchedule schedule(
      {.learning_rate =
           optim::curve::warm_up(0, 0.02, 10, optim::curve::cosine(0.02, 0.002, steps - 10)),
       .weight_decay = optim::curve::constant(0.1)});
  double first = 0;
  double last = 0;
  for (int64_t step = 0; step < steps; ++step) {
    model.zero_grad();
    const Tensor loss = cross_entropy(model(x), labels);
    loss.backward();
    TensorList gradients;
    for (const Tensor& parameter : model.parameters()) {
      gradients.push_back(parameter.grad());
    }
    optim::clip_grad_norm(gradients, 1.0);
    schedule.apply(optimizer, {.applied = step, .seen = step});
    optimizer.step();
    last = loss.item();
    first = step == 0 ? last : first;
  }
  std::printf("loss %.3f -> %.3f\n", first, last);
  return last < first / 4;
}

bool saving(const std::string& directory) {
  nn::Sequential model = make_model();
  optim::AdamW optimizer = make_optimizer(model);
  const Tensor x = randn({3, 2});
  sum(square(model(x))).backward();
  optimizer.step();

  save_safetensors(directory + "/model.safetensors", model.state_dict(), {{"step", "100"}});
  save_safetensors(directory + "/optimizer.safetensors", optimizer.state_dict());

  nn::Sequential other = make_model();
  other.load_state_dict(load_safetensors(directory + "/model.safetensors"));
  make_optimizer(other).load_state_dict(load_safetensors(directory + "/optimizer.safetensors"));
  const bool same = all(eq(model(x), other(x))).item() != 0;
  std::cout << "same model: " << same << "\n";
  return same;
}

void errors() {
  try {
    matmul(zeros({4, 3}), zeros({5, 2}));
  } catch (const ValueError& e) {
    std::cout << e.what() << "\n";
  }
  try {
    nn::Linear(2, 3).load_state_dict({{"weight", zeros({3, 3})}, {"scale", ones({3})}});
  } catch (const Error& e) {  // the base of all of them
    std::cout << e.what();
  }
  const Tensor x = tensor({1, 2});
  x.set_requires_grad();
  const Tensor y = sum(square(x));
  mul_(x.detach(), 2);  // changes what square saved
  try {
    y.backward();
  } catch (const RuntimeError& e) {
    std::cout << e.what() << "\n";
  }
}

/// tour [DIRECTORY]: where the files of saving() go; the current one by default.
int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : ".";
  std::filesystem::create_directories(directory);
  std::cout << std::boolalpha;
  tensors();
  matrices();
  gradients();
  recompute();
  threads();
  bool good = custom_op();
  custom_module();
  good = training() && good;
  good = saving(directory) && good;
  batches();
  errors();
  return good ? 0 : 1;
}
