// value[key], value.name and slices.
#include <algorithm>
#include <optional>

#include "text/chat/methods.h"
#include "text/chat/operators.h"
#include "text/chat/text.h"
#include "text/util/utf8.h"

namespace tapestry::chat::jinja {

namespace {

std::string no_attribute(const Value& value, std::string_view name) {
  return concat("'", value.type_name(), " object' has no attribute '", name, "'");
}

// Where Python's index leads; nothing if it leads out.
std::optional<size_t> place_of_index(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  const int64_t place = index < 0 ? index + count : index;
  return place >= 0 && place < count ? std::optional(static_cast<size_t>(place)) : std::nullopt;
}

// A part of a text, marked as that is.
Value like(Run& run, const Text& text, std::string_view part) {
  return text.markup ? run.marked(std::string(part)) : run.text(std::string(part));
}

Value element_of_text(Run& run, const Text& text, int64_t index, const Value& otherwise) {
  run.step(text.ascii ? 0 : text.bytes.size() / 16);
  const size_t size = text.ascii ? text.bytes.size() : data::count_characters(text.bytes);
  const std::optional<size_t> place = place_of_index(index, size);
  if (!place) {
    return otherwise;
  }
  const size_t begin = text.ascii ? *place : place_of_code_point(text.bytes, *place);
  const std::string_view rest = std::string_view(text.bytes).substr(begin);
  return like(run, text, rest.substr(0, text.ascii ? 1 : place_of_code_point(rest, 1)));
}

// The places that start:stop:step means, as slice.indices says.
struct SlicePlaces {
  int64_t start;
  int64_t stop;
  int64_t step;
};

SlicePlaces slice_places(
    Run& run, size_t size, const Value& start, const Value& stop, const Value& step) {
  const auto count = static_cast<int64_t>(size);
  const auto bound = [&](const Value& value, int64_t otherwise, int64_t least, int64_t most) {
    if (value.is_none()) {
      return otherwise;
    }
    const int64_t given = expect_integer(run, value, "a slice's bound");
    return std::clamp(given < 0 ? given + count : given, least, most);
  };
  const int64_t stride = step.is_none() ? 1 : expect_integer(run, step, "a slice's step");
  if (stride == 0) {
    run.fail("a slice's step is zero");
  }
  if (stride > 0) {
    return {bound(start, 0, 0, count), bound(stop, count, 0, count), std::min(stride, count + 1)};
  }
  return {bound(start, count - 1, -1, count - 1), bound(stop, -1, -1, count - 1),
          std::max(stride, -count - 1)};
}

template <class Take>
void for_each_place(const SlicePlaces& places, Take take) {
  for (int64_t i = places.start; places.step > 0 ? i < places.stop : i > places.stop;
       i += places.step) {
    take(static_cast<size_t>(i));
  }
}

Value slice_of_text(
    Run& run, const Text& text, const Value& start, const Value& stop, const Value& step) {
  run.step(text.ascii ? 0 : text.bytes.size() / 16);
  const std::string_view bytes = text.bytes;
  const size_t size = text.ascii ? bytes.size() : data::count_characters(bytes);
  const SlicePlaces places = slice_places(run, size, start, stop, step);
  if (places.step == 1) {
    const auto first = static_cast<size_t>(places.start);
    const size_t count = std::max(first, static_cast<size_t>(places.stop)) - first;
    const std::string_view rest =
        bytes.substr(text.ascii ? first : place_of_code_point(bytes, first));
    return like(run, text, rest.substr(0, text.ascii ? count : place_of_code_point(rest, count)));
  }
  run.letters(bytes.size());
  const std::vector<size_t> starts = text.ascii ? std::vector<size_t>() : code_point_starts(bytes);
  std::string out;
  for_each_place(places, [&](size_t i) {
    out += text.ascii ? bytes.substr(i, 1) : bytes.substr(starts[i], starts[i + 1] - starts[i]);
  });
  return like(run, text, out);
}

}  // namespace

Value get_item(Run& run, const Value& value, const Value& key) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (value.is_dict()) {
    if (!key.is_sequence() && !key.is_dict()) {
      run.step(key.is_text() ? key.bytes().size() / 16 : value.dict().entries().size());
      if (const Value* found = value.dict().find(key)) {
        return *found;
      }
    }
  } else if (key.is_integer() || key.is_bool()) {
    if (value.is_text()) {
      return element_of_text(run, value.text(), key.integer(),
                             run.undefined("str object has no element"));
    }
    if (value.is_sequence() && value.sequence().indexable()) {
      const Values& items = value.sequence().items;
      const std::optional<size_t> place = place_of_index(key.integer(), items.size());
      return place ? items[*place]
                   : run.undefined(
                         concat(value.type_name(), " object has no element ", key.integer()));
    }
  }
  if (key.is_text()) {
    run.step(key.bytes().size() / 16);
    if (std::optional<Value> attribute = attribute_of(run, value, key.bytes())) {
      return *std::move(attribute);
    }
    return run.undefined(no_attribute(value, key.bytes()));
  }
  return run.undefined(concat(value.type_name(), " object has no such element"));
}

Value get_attribute(Run& run, const Value& value, std::string_view name) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (std::optional<Value> attribute = attribute_of(run, value, name)) {
    return *std::move(attribute);
  }
  if (value.is_dict()) {
    if (const Value* found = value.dict().find(name)) {
      return *found;
    }
  }
  return run.undefined(no_attribute(value, name));
}

Value get_slice(
    Run& run, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) {
    fail_undefined(run, value);
  }
  if (value.is_text()) {
    return slice_of_text(run, value.text(), start, stop, step);
  }
  if (!value.is_sequence() || !value.sequence().indexable()) {
    run.fail("'", value.type_name(), "' object cannot be sliced");
  }
  const Sequence& sequence = value.sequence();
  Values items;
  for_each_place(slice_places(run, sequence.items.size(), start, stop, step),
                 [&](size_t i) { items.push_back(sequence.items[i]); });
  return run.sequence(sequence.form, std::move(items));
}

}  // namespace tapestry::chat::jinja
