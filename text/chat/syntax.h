// A template as a tree.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/builtins.h"
#include "text/chat/operators.h"
#include "text/chat/value.h"

namespace tapestry::chat::jinja {

constexpr int kMaxSyntaxDepth = 200;

/// A variable's name as an index into Syntax::names.
using Symbol = int;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// A vector of what can only be moved.
template <class... Parts>
std::vector<ExpressionPtr> list_of(Parts... parts) {
  std::vector<ExpressionPtr> list;
  (list.push_back(std::move(parts)), ...);
  return list;
}

/// What stands in the brackets of a call.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  ///< *x
  ExpressionPtr more_named;       ///< **x
};

enum class Comparison { kEqual, kUnequal, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expression {
  enum class Kind {
    kConstant,
    kVariable,
    kTuple,
    kList,
    kDict,       ///< parts: key, value, key, value, ...
    kAttribute,  ///< parts[0].text
    kItem,       ///< parts[0][parts[1]]
    kSlice,      ///< parts[0][parts[1]:parts[2]:parts[3]], null where one is left out
    kCall,       ///< parts[0](arguments)
    kFilter,     ///< parts[0] | filter(arguments); parts[0] null: a block's text
    kTest,       ///< parts[0] is test(arguments)
    kBinary,     ///< parts[0] op parts[1]
    kNegate,
    kPlus,
    kNot,
    kAnd,
    kOr,
    kConcat,       ///< parts joined as texts
    kComparison,   ///< parts[0] comparisons[0] parts[1] comparisons[1] parts[2] ...
    kConditional,  ///< parts[1] if parts[0] else parts[2], which may be null
  };

  Kind kind = Kind::kConstant;
  int line = 1;
  int depth = 1;
  Value constant;
  Symbol symbol = -1;
  std::string text;
  std::vector<ExpressionPtr> parts;
  CallArguments arguments;
  Filter filter = nullptr;
  Test test = nullptr;
  BinaryOperator op = BinaryOperator::kAdd;
  std::vector<Comparison> comparisons;
};

/// Where `set`, `for` and `with` put a value.
struct Target {
  enum class Kind { kName, kNamespace, kTuple };

  Kind kind = Kind::kName;
  Symbol symbol = -1;
  std::string attribute;  ///< of a namespace
  std::vector<Target> parts;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Parameter {
  Symbol symbol = -1;
  ExpressionPtr otherwise;  ///< null: none
};

/// A macro, or what `call` hands to one.
struct MacroSyntax {
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  Block body;
};

struct Statement {
  enum class Kind {
    kData,
    kOutput,
    kIf,  ///< branches: conditions and bodies; a last null condition is `else`
    kFor,
    kSet,
    kSetBlock,
    kWith,
    kMacro,
    kCall,    ///< {% call(x) f() %}
    kFilter,  ///< {% filter f %}
    kScope,   ///< {% generation %}: its text, as it is
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kData;
  int line = 1;
  std::string data;
  ExpressionPtr expression;  ///< put out; gone through; set; called; the filters of a block
  ExpressionPtr condition;   ///< of `for ... if`
  bool is_recursive = false;
  Target target;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;  ///< of `with`
  Block body;
  Block otherwise;     ///< `else` of `for`
  Symbol symbol = -1;  ///< of a macro
  std::unique_ptr<MacroSyntax> macro;
};

struct Syntax {
  Block body;
  std::vector<std::string> names;  ///< of symbols
};

/// Symbols that the language itself gives a meaning; the first ones of each Syntax.
enum : Symbol { kLoopSymbol, kCallerSymbol, kVarargsSymbol, kKwargsSymbol, kFixedSymbols };

}  // namespace tapestry::chat::jinja
