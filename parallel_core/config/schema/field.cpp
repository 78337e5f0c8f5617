#include "parallel_core/config/schema/field.h"

namespace tapestry::config::detail {
namespace {

template <class T>
std::vector<T> list_of(const Value& value) {
  std::vector<T> items;
  for (const Value& item : value.as<Value::List>()) {
    items.push_back(item.as<T>());
  }
  return items;
}

template <class T>
std::vector<std::vector<T>> table_of(const Value& value) {
  std::vector<std::vector<T>> rows;
  for (const Value& row : value.as<Value::List>()) {
    if (!row.is<Value::List>()) {
      return {list_of<T>(value)};  // one row, written without the outer brackets
    }
    rows.push_back(list_of<T>(row));
  }
  return rows;
}

template <class T>
Value value_of(const std::vector<T>& items) {
  Value::List list;
  for (const T& item : items) {
    list.push_back({item});
  }
  return {std::move(list)};
}

template <class T>
Value value_of_table(const std::vector<std::vector<T>>& table) {
  if (table.size() == 1) {
    return value_of(table.front());
  }
  Value::List rows;
  for (const auto& row : table) {
    rows.push_back(value_of(row));
  }
  return {std::move(rows)};
}

const Value* find(const Value::Map& map, std::string_view key) {
  for (const auto& [name, value] : map) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

}  // namespace

void assign(bool& member, const Value& value) { member = value.as<bool>(); }
void assign(int64_t& member, const Value& value) { member = value.as<int64_t>(); }
void assign(double& member, const Value& value) { member = value.as<double>(); }
void assign(std::string& member, const Value& value) { member = value.as<std::string>(); }
void assign(DType& member, const Value& value) {
  for (const DType dtype : {kFloat16, kBFloat16, kFloat32}) {
    if (value.as<std::string>() == name_of(dtype)) {
      member = dtype;
    }
  }
}
void assign(std::vector<int64_t>& member, const Value& value) { member = list_of<int64_t>(value); }
void assign(std::vector<double>& member, const Value& value) { member = list_of<double>(value); }
void assign(std::vector<std::string>& member, const Value& value) {
  member = list_of<std::string>(value);
}
void assign(LayerTable& member, const Value& value) { member = table_of<int64_t>(value); }
void assign(FloatTable& member, const Value& value) { member = table_of<double>(value); }
void assign(RecomputeChoice& member, const Value& value) { member.value = value; }
void assign(Initializer& member, const Value& value) {
  if (value.is<double>()) {
    member = {"constant", value.as<double>()};
  } else {
    member = {value.as<std::string>(), std::nullopt};
  }
}
void assign(ResumeChoice& member, const Value& value) {
  if (value.is<bool>()) {
    member = {value.as<bool>(), {}};
  } else {
    member = {true, value.as<std::string>()};
  }
}
void assign(LoraTargets& member, const Value& value) {
  member = {};
  for (const Value& item : value.as<Value::List>()) {
    const auto& map = item.as<Value::Map>();
    if (const Value* patterns = find(map, "target_cells")) {
      member.patterns = list_of<std::string>(*patterns);
      continue;
    }
    LoraCell cell;
    cell.cell = find(map, "cell")->as<std::string>();
    if (const Value* rank = find(map, "rank")) {
      cell.rank = rank->as<int64_t>();
    }
    if (const Value* alpha = find(map, "alpha")) {
      cell.alpha = alpha->as<double>();
    }
    member.cells.push_back(std::move(cell));
  }
}
void assign(OwnOptions& member, const Value& value) {
  member.values.clear();
  for (const auto& [name, entry] : value.as<Value::Map>()) {
    member.values[name] = entry;
  }
}

Value read(bool member) { return {member}; }
Value read(int64_t member) { return {member}; }
Value read(double member) { return {member}; }
Value read(const std::string& member) { return {member}; }
Value read(DType member) { return {std::string(name_of(member))}; }
Value read(const std::vector<int64_t>& member) { return value_of(member); }
Value read(const std::vector<double>& member) { return value_of(member); }
Value read(const std::vector<std::string>& member) { return value_of(member); }
Value read(const LayerTable& member) { return value_of_table(member); }
Value read(const FloatTable& member) { return value_of_table(member); }
Value read(const RecomputeChoice& member) { return member.value; }
Value read(const Initializer& member) {
  return member.constant ? Value{*member.constant} : Value{member.name};
}
Value read(const ResumeChoice& member) {
  return member.checkpoint.empty() ? Value{member.on} : Value{member.checkpoint};
}
Value read(const LoraTargets& member) {
  Value::List list;
  list.push_back({Value::Map{{"target_cells", value_of(member.patterns)}}});
  for (const LoraCell& cell : member.cells) {
    Value::Map map{{"cell", {cell.cell}}};
    if (cell.rank) {
      map.emplace_back("rank", Value{*cell.rank});
    }
    if (cell.alpha) {
      map.emplace_back("alpha", Value{*cell.alpha});
    }
    list.push_back({std::move(map)});
  }
  return {std::move(list)};
}
Value read(const OwnOptions& member) {
  return {Value::Map(member.values.begin(), member.values.end())};
}

}  // namespace tapestry::config::detail
