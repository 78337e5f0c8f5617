// Functions that every template has.
#include <algorithm>
#include <ctime>
#include <utility>

#include "text/chat/builtins.h"
#include "text/chat/operators.h"
#include "text/chat/value_text.h"

namespace tapestry::chat::jinja {

namespace functions {

using Function = Value (*)(Run& run, const Arguments& arguments);

__extension__ using Wide = __int128;    // holds what a range spans
constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

class NativeFunction final : public Object {
 public:
  explicit NativeFunction(Function function) : function_(function) {}
  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Run& run, const Arguments& arguments) override { return function_(run, arguments); }

 private:
  Function function_;
};

Value range(Run& run, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "range", arguments, {"(start)", "(stop)", "(step)"}, 1);
  const auto number = [&](size_t i) { return expect_integer(run, *bound[i], "range: a number"); };
  const int64_t start = bound[1] ? number(0) : 0;
  const int64_t stop = bound[1] ? number(1) : number(0);
  const int64_t step = bound[2] ? number(2) : 1;
  if (step == 0) {
    run.fail("range: the step is 0");
  }
  const Wide distance = static_cast<Wide>(stop) - start;
  const Wide count = (distance + step + (step > 0 ? -1 : 1)) / step;
  if (count > kMaxRange) {
    run.fail("range: more than ", kMaxRange, " numbers");
  }
  // What takes more steps than there are left must not be made first.
  const auto size = static_cast<size_t>(std::max<Wide>(count, 0));
  run.check_steps(size);
  Values items;
  items.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    items.emplace_back(static_cast<int64_t>(start + static_cast<Wide>(i) * step));
  }
  return run.sequence(Sequence::Form::kRange, std::move(items));
}

std::shared_ptr<Dict> dict_from(Run& run, std::string_view name, const Arguments& arguments) {
  auto dict = std::make_shared<Dict>();
  if (arguments.positional.size() > 1) {
    run.fail(name, " takes at most one argument without a name");
  }
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (given.is_dict()) {
      for (const auto& [key, value] : given.dict().entries()) {
        run.set(*dict, key, value);
      }
    } else {
      for (const Value& pair : items_of(run, given)) {
        const Values both = items_of(run, pair);
        if (both.size() != 2) {
          run.fail(name, ": an element is no pair");
        }
        run.set(*dict, both[0], both[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) {
    run.set(*dict, run.text(key), value);
  }
  return dict;
}

Value make_dict(Run& run, const Arguments& arguments) {
  return run.dict(dict_from(run, "dict", arguments));
}

Value make_namespace(Run& run, const Arguments& arguments) {
  const Value names = run.names();
  const std::shared_ptr<Dict> dict = dict_from(run, "namespace", arguments);
  for (const auto& [key, value] : dict->entries()) {
    names.names().set(expect_text(run, key, "namespace: a name"), value);
  }
  return names;
}

Value raise_exception(Run& run, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "raise_exception", arguments, {"message"}, 1);
  run.fail(to_text(run, *bound[0]));
}

Value strftime_now(Run& run, const Arguments& arguments) {
  const auto bound = bind_arguments(run, "strftime_now", arguments, {"format"}, 1);
  const std::string& format = expect_text(run, *bound[0], "strftime_now: the format");
  std::tm time{};
  localtime_r(&*run.now(), &time);
  constexpr size_t kMaxFormat = 4096;
  run.scan(64 * kMaxFormat);
  if (format.size() > kMaxFormat) {
    run.fail("strftime_now: the format has more than ", kMaxFormat, " bytes");
  }
  // A space of our own tells a text that is empty from one that does not fit.
  std::string out(64 * kMaxFormat, '\0');
  const size_t size = std::strftime(out.data(), out.size(), (format + ' ').c_str(), &time);
  if (size == 0 || format.find('\0') != std::string::npos) {
    run.fail("strftime_now: the format makes no text");
  }
  out.resize(size - 1);
  return run.text(std::move(out));
}

constexpr std::pair<std::string_view, Function> kFunctions[] = {
    {"range", range},
    {"dict", make_dict},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
};

}  // namespace functions

Value global_of(Run& run, std::string_view name) {
  const auto made = [](functions::Function function) {
    return Value(std::shared_ptr<Object>(std::make_shared<functions::NativeFunction>(function)));
  };
  for (const auto& [known, function] : functions::kFunctions) {
    if (known == name) {
      return made(function);
    }
  }
  if (name == "strftime_now" && run.now()) {
    return made(functions::strftime_now);
  }
  return run.undefined(concat("'", name, "' is undefined"));
}

}  // namespace tapestry::chat::jinja
