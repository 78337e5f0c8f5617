// Binds a row of the schema to a member of the structs: its type, its writer and its reader.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

/// What the text of a key must be. The type follows from the member that the key is bound to.
enum class Type {
  kBool,
  kInt,
  kFloat,  // an integer is accepted
  kString,
  kDType,    // float16 | bfloat16 | float32
  kIntList,  // one number stands for a list of one
  kFloatList,
  kStringList,   // one text stands for a list of one; numbers are kept as written
  kLayerTable,   // numbers, or rows of numbers
  kFloatTable,   // the same of floats; brackets within a row have no meaning
  kRecompute,    // RecomputeChoice
  kInitializer,  // a name or a number
  kSwitchOrName,
  kLoraTargets,  // a list of mappings
  kMapping,      // its entries are rows of the table
  kOptions,      // a mapping whose entries are for somebody else
};

namespace detail {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
constexpr Type type_of() {
  if constexpr (IsOptional<T>::value) {
    return type_of<typename T::value_type>();
  } else if constexpr (std::is_same_v<T, bool>) {
    return Type::kBool;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return Type::kInt;
  } else if constexpr (std::is_same_v<T, double>) {
    return Type::kFloat;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return Type::kString;
  } else if constexpr (std::is_same_v<T, DType>) {
    return Type::kDType;
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    return Type::kIntList;
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    return Type::kFloatList;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return Type::kStringList;
  } else if constexpr (std::is_same_v<T, LayerTable>) {
    return Type::kLayerTable;
  } else if constexpr (std::is_same_v<T, FloatTable>) {
    return Type::kFloatTable;
  } else if constexpr (std::is_same_v<T, RecomputeChoice>) {
    return Type::kRecompute;
  } else if constexpr (std::is_same_v<T, Initializer>) {
    return Type::kInitializer;
  } else if constexpr (std::is_same_v<T, ResumeChoice>) {
    return Type::kSwitchOrName;
  } else if constexpr (std::is_same_v<T, LoraTargets>) {
    return Type::kLoraTargets;
  } else if constexpr (std::is_same_v<T, OwnOptions>) {
    return Type::kOptions;
  } else {
    static_assert(std::is_class_v<T>);
    return Type::kMapping;
  }
}

// Value -> member. The value has been parsed for type_of<T>().
void assign(bool& member, const Value& value);
void assign(int64_t& member, const Value& value);
void assign(double& member, const Value& value);
void assign(std::string& member, const Value& value);
void assign(DType& member, const Value& value);
void assign(std::vector<int64_t>& member, const Value& value);
void assign(std::vector<double>& member, const Value& value);
void assign(std::vector<std::string>& member, const Value& value);
void assign(LayerTable& member, const Value& value);
void assign(FloatTable& member, const Value& value);
void assign(RecomputeChoice& member, const Value& value);
void assign(Initializer& member, const Value& value);
void assign(ResumeChoice& member, const Value& value);
void assign(LoraTargets& member, const Value& value);
void assign(OwnOptions& member, const Value& value);
template <class T>
requires(type_of<T>() == Type::kMapping && !IsOptional<T>::value) void assign(T& member,
                                                                              const Value& value) {
  if (value.is_null()) {
    member = T{};
  }
}
template <class T>
void assign(std::optional<T>& member, const Value& value) {
  if (value.is_null()) {
    member.reset();
    return;
  }
  if (!member) {
    member.emplace();
  }
  assign(*member, value);
}

// Member -> value. A mapping reads as an empty mapping; its entries have rows of their own.
Value read(bool member);
Value read(int64_t member);
Value read(double member);
Value read(const std::string& member);
Value read(DType member);
Value read(const std::vector<int64_t>& member);
Value read(const std::vector<double>& member);
Value read(const std::vector<std::string>& member);
Value read(const LayerTable& member);
Value read(const FloatTable& member);
Value read(const RecomputeChoice& member);
Value read(const Initializer& member);
Value read(const ResumeChoice& member);
Value read(const LoraTargets& member);
Value read(const OwnOptions& member);
template <class T>
requires(type_of<T>() == Type::kMapping && !IsOptional<T>::value) Value read(const T& /*member*/) {
  return {Value::Map{}};
}
template <class T>
Value read(const std::optional<T>& member) {
  return member ? read(*member) : Value{};
}

template <class T>
T& present(T& member) {
  return member;
}
template <class T>
T& present(std::optional<T>& member) {
  return member ? *member : member.emplace();
}
template <class T>
const T& present(const std::optional<T>& member) {
  static const T absent{};
  return member ? *member : absent;
}

template <auto Member, auto... Rest, class Owner>
auto& locate(Owner& owner) {
  if constexpr (sizeof...(Rest) == 0) {
    return owner.*Member;
  } else {
    return locate<Rest...>(present(owner.*Member));
  }
}

}  // namespace detail

/// Where a key's value is kept: in a member of AllConfig; or, of a key that no code reads, in
/// AllConfig::without_effect.
struct Field {
  Type type;
  bool nullable;
  void (*set_member)(AllConfig&, const Value&) = nullptr;
  Value (*get_member)(const AllConfig&) = nullptr;
  std::string_view section = {};  // the three of a key without member
  std::string_view name = {};
  std::string_view initial = {};

  void set(AllConfig& config, const Value& value) const;
  Value get(const AllConfig& config) const;
};

/// A member, reached through `Path` (pointers to members). Optionals on the way are filled when
/// written, and read as default-constructed when empty.
template <auto... Path>
constexpr Field field_of() {
  using Member = std::remove_cvref_t<decltype(detail::locate<Path...>(std::declval<AllConfig&>()))>;
  return {detail::type_of<Member>(), detail::IsOptional<Member>::value,
          [](AllConfig& config, const Value& value) {
            detail::assign(detail::locate<Path...>(config), value);
          },
          [](const AllConfig& config) { return detail::read(detail::locate<Path...>(config)); }};
}

}  // namespace tapestry::config
