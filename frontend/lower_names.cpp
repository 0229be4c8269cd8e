// Lowering, names: variables by frame, dims by dynamic scope, paths of weights, and the binding of
// arguments to parameters. A misspelt name gets the nearest one that is visible as a suggestion.
// Tested by tests/unit/lower_test.cpp and tests/frontend/errors/lower_names.plan.
#include <algorithm>

#include "frontend/lower.h"
#include "llvm/ADT/StringExtras.h"

namespace planc::lowering {

std::string dimList(llvm::ArrayRef<Dim> dims) {
  std::string text = "[";
  for (const Dim& dim : dims) text += (text.size() > 1 ? ", " : "") + dim.name;
  return text + "]";
}

const Dim* Wanted::find(llvm::StringRef name) const {
  for (const Dim& dim : dims)
    if (dim.name == name) return &dim;
  return nullptr;
}

Wanted Wanted::with(llvm::ArrayRef<Dim> more) const {
  Wanted result = *this;
  for (const Dim& dim : more)
    if (!find(dim.name)) result.dims.push_back(dim);
  return result;
}

llvm::SmallVector<Dim, 4> ordered(llvm::ArrayRef<Dim> dims, const Wanted& wanted) {
  llvm::SmallVector<Dim, 4> result;
  auto find = [&](llvm::ArrayRef<Dim> list, llvm::StringRef name) {
    return std::find_if(list.begin(), list.end(), [&](const Dim& d) { return d.name == name; });
  };
  for (const Dim& dim : wanted.dims)
    if (auto at = find(dims, dim.name); at != dims.end()) result.push_back(*at);
  for (const Dim& dim : dims)
    if (find(result, dim.name) == result.end()) result.push_back(dim);
  return result;
}

const Item* Lowering::findName(llvm::StringRef name) {
  auto& scopes = frame().scopes;
  for (auto at = scopes.rbegin(); at != scopes.rend(); ++at)
    if (auto found = at->names.find(name); found != at->names.end()) return &found->second;
  return nullptr;
}

const DimEntry* Lowering::findDim(llvm::StringRef name) const {
  for (auto at = dims_.rbegin(); at != dims_.rend(); ++at)
    if (at->name == name) return &*at;
  return nullptr;
}

std::vector<std::string> Lowering::visibleNames(bool dimsOnly) const {
  std::set<std::string> names;
  for (const DimEntry& entry : dims_) names.insert(entry.name);
  if (!dimsOnly)
    for (const BodyScope& scope : frames_.back()->scopes)
      for (const auto& [name, item] : scope.names) names.insert(name);
  return {names.begin(), names.end()};
}

void suggestNearest(Diagnostic& message, llvm::StringRef word,
                    const std::vector<std::string>& names, llvm::StringRef otherwise) {
  std::string found = nearest(word, names);
  if (!found.empty()) message.suggest("did you mean '" + found + "'?");
  else if (!otherwise.empty()) message.suggest(otherwise);
}

std::optional<Dim> Lowering::dimNamed(const ast::Ident& ident) {
  if (const DimEntry* entry = findDim(ident.text)) return entry->dim;
  suggestNearest(error(ident.loc, Diag::UnknownDim, ident.text), ident.text, visibleNames(true),
                 "declare it: dim " + ident.text + " = SIZE");
  return std::nullopt;
}

// A dim's name means one size wherever tensors may meet, so a module can't give a caller's name
// another size.
bool Lowering::declareDim(const ast::Ident& name, int64_t size, bool isRepeat) {
  for (llvm::StringRef own : {"microbatch", "choice", "bound"})
    if (name.text == own) {
      error(name.loc, Diag::DimReserved, own).suggest("choose another name");
      return false;
    }
  for (const DimEntry& entry : dims_) {
    if (entry.dim.name != name.text) continue;
    bool mayRepeat = frames_.size() > 1 && !isRepeat && entry.dim.size == size;
    if (mayRepeat) break;
    error(name.loc, Diag::DimDeclaredTwice, name.text, size, entry.dim.size)
        .note(entry.loc, Diag::DeclaredHere, name.text)
        .suggest("give one of the two another name");
    return false;
  }
  dims_.push_back({name.text, Dim{name.text, size, ""}, name.loc});
  auto [at, isNew] = allDims_.emplace(name.text, DimInfo{size, name.loc});
  if (!isNew && isRepeat && frames_.size() == 1 && frame().scopes.size() == 1)
    at->second.size += size;
  else if (!isNew && !isRepeat && size != at->second.size) at->second.others.insert(size);
  if (isRepeat) noteUse(name.text, kIterations);
  return true;
}

void Lowering::noteRepeat(llvm::StringRef dim, int64_t count) {
  DimInfo& info = allDims_.at(dim.str());
  if (!builder_.block()->enclosing().empty()) {
    info.isInner = true;
    return;
  }
  if (info.iterations == 0) info.order = outerRepeats_;
  info.iterations += count;
  ++outerRepeats_;
}

void Lowering::noteUse(llvm::StringRef dim, DimUse use) {
  if (auto at = allDims_.find(dim.str()); at != allDims_.end()) at->second.uses |= use;
}

std::optional<llvm::SmallVector<Dim, 4>> Lowering::resolveDims(llvm::ArrayRef<ast::Ident> dims,
                                                               bool open) {
  llvm::SmallVector<Dim, 4> result;
  bool good = true;
  for (const ast::Ident& ident : dims) {
    std::optional<Dim> dim;
    if (open && !findDim(ident.text)) {
      dim = Dim{ident.text, 0, ""};
      open = false;
    } else {
      dim = dimNamed(ident);
    }
    if (!dim) {
      good = false;
      continue;
    }
    for (const Dim& seen : result)
      if (seen.name == dim->name && good) {
        Diagnostic& message = error(ident.loc, Diag::DimTwice, dim->name);
        if (ident.text != dim->name)
          message.suggest("'" + ident.text + "' is the caller's '" + dim->name + "' here");
        else
          message.suggest("give the second another name of the same size: dim other = " +
                          dim->name);
        good = false;
      }
    result.push_back(*dim);
  }
  if (!good) return std::nullopt;
  return result;
}

// `attention`, and for the second instance in one body `attention_2`.
std::string Lowering::instancePath(llvm::StringRef name) {
  int count = ++scope().instances[name.str()];
  std::string path = scope().path + name.str();
  return count == 1 ? path : path + "_" + std::to_string(count);
}

std::optional<std::vector<const ast::Arg*>> Lowering::matchArgs(const ast::Expr& call,
                                                                llvm::ArrayRef<ParamName> params,
                                                                Loc decl) {
  std::vector<const ast::Arg*> bound(params.size());
  expressions_ += unsigned(params.size() * call.args.size() / 8);  // hostile calls are bounded too
  bool good = true;
  auto indexOf = [&](llvm::StringRef name) {
    return size_t(std::find_if(params.begin(), params.end(),
                               [&](const ParamName& p) { return p.name == name; }) -
                  params.begin());
  };
  auto complain = [&](Loc loc, Diag id, auto&&... what) -> Diagnostic& {
    good = false;
    Diagnostic& message = error(loc, id, call.text, what...);
    if (decl.known()) message.note(decl, Diag::DeclaredHere, call.text);
    return message;
  };
  size_t next = 0, positional = 0;
  for (const ast::Arg& arg : call.args) {
    size_t index;
    const bool isBare = arg.value->kind == ast::ExprKind::Name;
    if (!arg.key.text.empty()) {
      index = indexOf(arg.key.text);
      if (index == params.size()) {
        std::vector<std::string> names;
        for (const ParamName& param : params) names.push_back(param.name);
        suggestNearest(complain(arg.key.loc, Diag::UnknownArgument, arg.key.text), arg.key.text,
                       names, params.empty() ? "" : "it takes " + llvm::join(names, ", "));
        continue;
      }
    } else if (isBare && indexOf(arg.value->text) < params.size() &&
               params[indexOf(arg.value->text)].flag) {
      index = indexOf(arg.value->text);
    } else {
      ++positional;
      while (next < params.size() && (bound[next] || params[next].flag)) ++next;
      if (next == params.size()) {
        size_t places = 0;
        for (const ParamName& param : params) places += !param.flag;
        if (good) complain(arg.value->loc, Diag::TooManyArguments, places, positional);
        continue;
      }
      index = next;
    }
    if (bound[index]) {
      Loc loc = arg.key.text.empty() ? arg.value->loc : arg.key.loc;
      complain(loc, Diag::ArgumentTwice, params[index].name);
      continue;
    }
    bound[index] = &arg;
  }
  if (!good) return std::nullopt;
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].required && !bound[i]) complain(call.loc, Diag::MissingArgument, params[i].name);
  if (!good) return std::nullopt;
  return bound;
}

// A model's parameters: the plan's value or the command line's, else the fallback.
void Lowering::bindModelParameters(const ast::Module& model,
                                   const std::vector<Override>& overrides) {
  for (const ast::Param& param : model.params) {
    Item item;
    auto given = std::find_if(overrides.rbegin(), overrides.rend(),
                              [&](const Override& o) { return o.name == param.name.text; });
    if (given != overrides.rend() && !given->value) {
      double number;
      llvm::StringRef text = given->text;
      if (text == "true" || text == "false") {
        item.kind = Item::Truth;
        item.number = text == "true";
      } else if (!text.getAsDouble(number)) {
        item = Item::ofNumber(number);
      } else {
        item.kind = Item::Word;
        item.word = given->text;
      }
    } else {
      const ast::Expr* value = given != overrides.rend() ? given->value : param.fallback.get();
      if (!value) {
        error(param.name.loc, Diag::ParameterMissing, param.name.text, model.name.text)
            .suggest("give it in the plan: of " + model.name.text + "(" + param.name.text +
                     " = ...)");
      } else if (auto found = evalStatic(*value, true)) {
        item = *found;
      }
    }
    item.fresh = false;
    item.parameter = true;
    item.loc = param.name.loc;
    scope().names[param.name.text] = item;
  }
}

// Lowers a call of a module: its dims first (they rename), then values and tensors, evaluated in
// the caller's names, then its body in a frame of its own.
Item Lowering::callModule(const ast::Module& module, const ast::Expr& call) {
  for (const auto& caller : frames_)
    if (caller->module == &module) {
      error(call.loc, Diag::Recursion, call.text)
          .note(module.name.loc, Diag::DeclaredHere, call.text)
          .suggest("a module can't contain itself; use 'repeat' for layers");
      return poison();
    }
  std::vector<ParamName> names;
  for (const ast::Param& param : module.params)
    names.push_back({param.name.text, param.kind != ast::Param::DimName && !param.fallback, false});
  auto args = matchArgs(call, names, module.name.loc);
  if (!args) return poison();

  auto callee = std::make_unique<Frame>();
  callee->module = &module;
  callee->call = call.loc;
  callee->scopes.emplace_back();
  size_t outerDims = dims_.size();
  bool good = true;

  std::vector<DimEntry> renamed;
  for (size_t i = 0; i < module.params.size(); ++i) {
    const ast::Param& param = module.params[i];
    if (param.kind != ast::Param::DimName) continue;
    const ast::Expr* value = (*args)[i] ? (*args)[i]->value.get() : param.fallback.get();
    std::optional<Dim> dim;
    // A fallback may name an earlier dim parameter.
    auto earlier = std::find_if(renamed.rbegin(), renamed.rend(), [&](const DimEntry& entry) {
      return value && !(*args)[i] && entry.name == value->text;
    });
    if (!value) dim = dimNamed(param.name);
    else if (earlier != renamed.rend()) dim = earlier->dim;
    else if (value->kind == ast::ExprKind::Name) dim = dimNamed({value->text, value->loc});
    else error(value->loc, Diag::NotADim, param.name.text).suggest("give the name of a dim");
    if (dim) renamed.push_back({param.name.text, *dim, param.name.loc});
    else good = false;
  }
  if (!good) return poison();

  // The dims of tensor parameters, under their new names.
  std::vector<Wanted> wanted(module.params.size());
  dims_.insert(dims_.end(), renamed.begin(), renamed.end());
  for (size_t i = 0; i < module.params.size(); ++i) {
    if (module.params[i].kind != ast::Param::Tensor) continue;
    auto dims = resolveDims(module.params[i].dims);
    if (!dims) good = false;
    else wanted[i] = {true, false, *dims};
  }
  dims_.resize(outerDims);

  auto& inner = callee->scopes.back().names;
  for (size_t i = 0; i < module.params.size(); ++i) {
    const ast::Param& param = module.params[i];
    if (param.kind == ast::Param::DimName || !(*args)[i]) continue;
    const ast::Expr& value = *(*args)[i]->value;
    Item item;
    if (param.kind == ast::Param::Number) {
      bool words = param.fallback && param.fallback->kind == ast::ExprKind::Name;
      const Item* named = value.kind == ast::ExprKind::Name ? findName(value.text) : nullptr;
      // An input where a word may stand for none.
      if (words && named && named->kind == Item::Input) item = *named;
      else if (auto found = evalStatic(value, words)) item = *found;
      else good = false;
    } else {
      item = eval(value, wanted[i]);
      if (item.kind == Item::Weight || item.isStatic()) item = toTensor(item, value.loc);
      bool isShaped = item.kind == Item::Tensor || item.kind == Item::Input;
      if (isShaped && wanted[i].known) {
        const Type type =
            item.kind == Item::Tensor ? item.value->type : item.var->slice(item.var->stack);
        bool same = type.dims.size() == wanted[i].dims.size();
        for (const Dim& dim : wanted[i].dims) same &= type.has(dim.name);
        if (!same) {
          error(value.loc, Diag::ArgumentNames, param.name.text, dimList(wanted[i].dims),
                dimList(type.dims))
              .note(param.name.loc, Diag::DeclaredHere, param.name.text);
          item = poison();
        } else if (!sizesAgree(type, Type{type.elem, wanted[i].dims}, value.loc)) {
          item = poison();
        }
      } else if (item.kind == Item::Route) {
        error(value.loc, Diag::NotATensor, "the result of 'route'");
        item = poison();
      }
      good &= item.kind != Item::Poison;
    }
    item.fresh = false;
    item.parameter = param.kind == ast::Param::Number;
    item.loc = param.name.loc;
    inner[param.name.text] = item;
  }

  callee->scopes.back().path = instancePath(module.name.text) + ".";
  frames_.push_back(std::move(callee));
  dims_.insert(dims_.end(), renamed.begin(), renamed.end());
  for (size_t i = 0; i < module.params.size(); ++i) {
    const ast::Param& param = module.params[i];
    if (param.kind != ast::Param::Number || (*args)[i] || !param.fallback) continue;
    Item item;
    if (auto found = evalStatic(*param.fallback, true)) item = *found;
    item.fresh = false;
    item.parameter = true;
    item.loc = param.name.loc;
    scope().names[param.name.text] = item;
  }
  lowerBody(module.body, false);
  if (!frame().returned)
    diags_.report(module.name.loc, Diag::NoReturn, module.name.text)
        .suggest("end its body with: return EXPRESSION");
  Item result = frame().result.value_or(Item());
  dims_.resize(outerDims);
  frames_.pop_back();
  result.fresh = true;
  result.parameter = false;
  // With a wrong argument the body was still checked, but its result says nothing.
  return good ? result : poison();
}

}  // namespace planc::lowering
