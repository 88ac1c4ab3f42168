// Calls of an optimiser step, recorded without a Python function in between.
//
// There are hundreds of them in a step, all alike: made by the framework's own code, in no module, without gradients. In
// Python each costs five hundred bytecode instructions, most of them to move what has been decided before from one
// function to the next. What is decided, encoded and kept is the same as there (msprobe/dispatch/flat_phase.py); whatever
// is unusual is left to it.
#include "flat_calls.h"

#include <algorithm>
#include <string>
#include <vector>

#include "entries.h"
#include "frames.h"
#include "tensor_object.h"

namespace msprobe {

namespace {

// What a phase consists of, by place in its tuple; msprobe/dispatch/flat_phase.py fills it.
enum Field : Py_ssize_t {
  kMode,      // the function mode; `paused` of it is read
  kCapture,   // `running`, `epoch` and `writer` of it are read
  kEpoch,     // these two as they were when the phase began
  kWriter,
  kModules,   // list of running module calls
  kWanted,    // dict of function -> what is known of it; None: never recorded
  kDecisions, // dict of bytes -> (base, stack node), filled here
  kDecide,    // (function, args, frame) -> such a pair, or None: not one of these calls
  kFrame,     // frame of the phase, and the stack outside it
  kOuter,
  kState,     // functions of the framework: (gradients are recorded, saved tensors are packed, backward pass, modes)
  kTensor,    // class of a plain tensor
  kCounters,  // dict of base -> number of calls
  kEncoder,   // has the encoder to use as `active`; None: no values are recorded
  kNamed,     // keywords whose values `encode_kwargs` encodes
  kEncodeKwargs,
  kAsSequence,
  kName,      // of the phase
  kRecords,   // lists of (name, record), (name, stack node), (name, parent) by turns; None: no parents
  kStacks,
  kParents,
  kBatch,     // length from which on a list is written by `write`
  kWrite,
  kTooLate,   // (base, index, node, record, output): the step has ended meanwhile
  kAborted,   // (base, index, node, record, error): the call raised
  kFailed,    // (what, error): something here raised
  kFields
};

struct Names {
  PyObject* running = PyUnicode_InternFromString("running");
  PyObject* paused = PyUnicode_InternFromString("paused");
  PyObject* epoch = PyUnicode_InternFromString("epoch");
  PyObject* writer = PyUnicode_InternFromString("writer");
  PyObject* active = PyUnicode_InternFromString("active");
};

const Names& names() { return interned<Names>(); }

Ref owned(PyObject* borrowed) {
  Py_XINCREF(borrowed);
  return Ref(borrowed);
}

// The exception that is set, taken away until it is put back.
class Raised {
 public:
  Raised() {
    PyErr_Fetch(&type_, &value_, &traceback_);
    PyErr_NormalizeException(&type_, &value_, &traceback_);
    if (traceback_ != nullptr && value_ != nullptr) PyException_SetTraceback(value_, traceback_);
  }
  ~Raised() {
    Py_XDECREF(type_);
    Py_XDECREF(value_);
    Py_XDECREF(traceback_);
  }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;

  PyObject* error() const { return value_; }
  void put_back() {
    PyErr_Restore(type_, value_, traceback_);
    type_ = value_ = traceback_ = nullptr;
  }

 private:
  PyObject *type_, *value_, *traceback_;
};

class FlatCall {
 public:
  FlatCall(PyObject* phase, PyObject* function, PyObject* args, PyObject* kwargs, PyObject* frame)
      : phase_(phase), function_(function), args_(args), kwargs_(kwargs == Py_None ? nullptr : kwargs), frame_(frame) {}

  // The result of the call; the phase itself if it is not one of these calls, and nothing has been done.
  PyObject* run();

 private:
  // A call of ours that raised ends the recording of this one, not the program. False: what it raised is to be passed on.
  bool survived(const char* part);
  PyObject* field(Field place) const { return PyTuple_GetItem(phase_, place); }
  bool attribute_is(Field object, PyObject* name, PyObject* value) const;
  bool goes_on() const;
  bool nobody_else_looks() const;
  bool decide();
  bool take_index();
  bool encode_inputs();
  bool encode_outputs(PyObject* output);
  bool keep();
  bool keep_pair(Field list, PyObject* first, PyObject* second);
  PyObject* record(bool complete) const;
  PyObject* raised();
  PyObject* left() const;
  bool tell(Field callback, PyObject* value) const;
  PyObject* call() const { return PyObject_Call(function_, args_, kwargs_); }
  bool measures() const { return field(kEncoder) != Py_None; }

  PyObject *phase_, *function_, *args_, *kwargs_, *frame_;
  PyObject *base_ = nullptr, *node_ = nullptr;  // borrowed from `decision_`
  Ref decision_, index_, encoder_;
  long long number_ = 0;
  Encoded inputs_, keywords_, outputs_;
};

bool FlatCall::attribute_is(Field object, PyObject* name, PyObject* value) const {
  const Ref found(PyObject_GetAttr(field(object), name));
  if (!found) return false;
  return found.get() == value || PyObject_RichCompareBool(found.get(), value, Py_EQ) == 1;
}

// Whether the step into which the phase records is open.
bool FlatCall::goes_on() const {
  const Ref writer(PyObject_GetAttr(field(kCapture), names().writer));
  return writer.get() == field(kWriter) && attribute_is(kCapture, names().epoch, field(kEpoch));
}

// Whether neither a module nor autograd nor a checkpoint nor another function mode has to do with the call.
bool FlatCall::nobody_else_looks() const {
  PyObject* state = field(kState);
  if (PyList_Size(field(kModules)) != 0) return false;
  const Ref gradients(PyObject_CallFunctionObjArgs(PyTuple_GetItem(state, 0), nullptr));
  if (gradients.get() != Py_False) return false;
  const Ref packed(PyObject_CallFunctionObjArgs(PyTuple_GetItem(state, 1), Py_True, nullptr));
  if (packed.get() != Py_None) return false;
  const Ref pass(PyObject_CallFunctionObjArgs(PyTuple_GetItem(state, 2), nullptr));
  if (!pass || PyLong_AsLong(pass.get()) != -1) return false;
  const Ref modes(PyObject_CallFunctionObjArgs(PyTuple_GetItem(state, 3), nullptr));
  return modes && PyLong_AsLong(modes.get()) == 0 && !PyErr_Occurred();
}

// Finds name and stack of the call. False: not one of these calls; an exception may be set.
bool FlatCall::decide() {
  bool with_number = false;  // what an operator is called depends on it
  if (PyTuple_Size(args_) > 1) {
    const int tensor = PyObject_IsInstance(PyTuple_GetItem(args_, 1), field(kTensor));
    if (tensor < 0) return false;
    with_number = tensor == 0;
  }
  std::vector<int64_t> stack;
  stack.reserve(64);
  stack.push_back(reinterpret_cast<int64_t>(function_));
  stack.push_back(with_number);
  if (append_stack(frame_, field(kFrame), field(kOuter), true, &stack) != 1) return false;
  const Ref key(as_key(stack));
  if (!key) return false;
  decision_ = owned(PyDict_GetItemWithError(field(kDecisions), key.get()));
  if (!decision_ && !PyErr_Occurred()) {
    decision_ = Ref(PyObject_CallFunctionObjArgs(field(kDecide), function_, args_, frame_, nullptr));
    if (!decision_ || decision_.get() == Py_None) return false;
    // The node keeps the code objects alive, `wanted` the function: their addresses stay theirs.
    if (PyDict_SetItem(field(kDecisions), key.get(), decision_.get()) < 0) return false;
  }
  if (!decision_) return false;
  base_ = PyTuple_GetItem(decision_.get(), 0);
  node_ = PyTuple_GetItem(decision_.get(), 1);
  return true;
}

bool FlatCall::take_index() {
  PyObject* counters = field(kCounters);
  PyObject* next = PyDict_GetItemWithError(counters, base_);
  if (next == nullptr && PyErr_Occurred()) return false;
  number_ = next != nullptr ? PyLong_AsLongLong(next) : 0;
  index_ = Ref(PyLong_FromLongLong(number_));
  const Ref following(PyLong_FromLongLong(number_ + 1));
  return index_ && following && PyDict_SetItem(counters, base_, following.get()) == 0;
}

bool FlatCall::encode_inputs() {
  if (!measures()) return true;
  encoder_ = Ref(PyObject_GetAttr(field(kEncoder), names().active));
  if (!encoder_ || !encode_list(args_, encoder_.get(), &inputs_)) return false;
  if (kwargs_ == nullptr || PyDict_Size(kwargs_) == 0) {
    keywords_.text = "{}";
    return true;
  }
  PyObject *key, *value;
  bool named = false;
  for (Py_ssize_t at = 0; !named && PyDict_Next(kwargs_, &at, &key, &value);)
    named = PySet_Contains(field(kNamed), key) != 0;
  if (PyErr_Occurred()) return false;
  if (!named && !encode_dict(kwargs_, encoder_.get(), &keywords_)) return false;
  if (keywords_.empty()) {
    keywords_.other = Ref(PyObject_CallFunctionObjArgs(field(kEncodeKwargs), kwargs_, nullptr));
    return static_cast<bool>(keywords_.other);
  }
  return true;
}

bool FlatCall::encode_outputs(PyObject* output) {
  if (!measures()) return true;
  const bool tensor = reinterpret_cast<PyObject*>(Py_TYPE(output)) == field(kTensor);
  const Ref results(tensor ? PyTuple_Pack(1, output)
                           : PyObject_CallFunctionObjArgs(field(kAsSequence), output, nullptr));
  return results && encode_list(results.get(), encoder_.get(), &outputs_);
}

// The record as it is so far: one text where all of it is text.
PyObject* FlatCall::record(bool complete) const {
  if (!measures()) return PyDict_New();
  if (complete && !inputs_.other && !keywords_.other && !outputs_.other)
    return json_fragment("{\"input_args\":" + inputs_.text + ",\"input_kwargs\":" + keywords_.text + ",\"output\":" +
                             outputs_.text + "}",
                         encoder_.get());
  Ref parts(PyDict_New());
  const Ref inputs(inputs_.object(encoder_.get())), keywords(keywords_.object(encoder_.get()));
  if (!parts || !inputs || !keywords || PyDict_SetItemString(parts.get(), "input_args", inputs.get()) < 0 ||
      PyDict_SetItemString(parts.get(), "input_kwargs", keywords.get()) < 0)
    return nullptr;
  if (complete) {
    const Ref outputs(outputs_.object(encoder_.get()));
    if (!outputs || PyDict_SetItemString(parts.get(), "output", outputs.get()) < 0) return nullptr;
  }
  return parts.release();
}

bool FlatCall::keep_pair(Field list, PyObject* first, PyObject* second) {
  PyObject* pairs = field(list);  // no Python code runs between the two: whoever reads it finds whole pairs
  return PyList_Append(pairs, first) == 0 && PyList_Append(pairs, second) == 0;
}

bool FlatCall::keep() {
  Py_ssize_t size = 0;
  const char* base = PyUnicode_AsUTF8AndSize(base_, &size);
  if (base == nullptr) return false;
  std::string text(base, static_cast<size_t>(size));
  text += '.' + std::to_string(number_) + ".forward";
  const Ref name(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
  if (!name) return false;
  Py_ssize_t longest = 0;
  if (measures()) {
    const Ref content(record(true));
    if (!content || !keep_pair(kRecords, name.get(), content.get())) return false;
    longest = PyList_Size(field(kRecords));
  }
  if (!keep_pair(kStacks, name.get(), node_)) return false;
  longest = std::max(longest, PyList_Size(field(kStacks)));
  if (field(kParents) != Py_None) {
    if (!keep_pair(kParents, name.get(), field(kName))) return false;
    longest = std::max(longest, PyList_Size(field(kParents)));
  }
  if (longest < PyLong_AsSsize_t(field(kBatch))) return true;
  return static_cast<bool>(Ref(PyObject_CallFunctionObjArgs(field(kWrite), nullptr)));
}

// Calls back with what is known of the call, and `value`. False: an exception is set.
bool FlatCall::tell(Field callback, PyObject* value) const {
  const Ref content(record(false));
  if (!content) return false;
  return static_cast<bool>(
      Ref(PyObject_CallFunctionObjArgs(field(callback), base_, index_.get(), node_, content.get(), value, nullptr)));
}

bool FlatCall::survived(const char* part) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;  // Ctrl-C, or the end of the process
  const Raised raised;
  const Ref where(PyUnicode_FromFormat("%s of %U", part, base_));
  return where && Ref(PyObject_CallFunctionObjArgs(field(kFailed), where.get(), raised.error(), nullptr));
}

// The call raised: tell what it was given, and pass the exception on.
PyObject* FlatCall::raised() {
  Raised raised;
  if (tell(kAborted, raised.error())) raised.put_back();
  return nullptr;
}

// Leaves the call to Python: what raised here is asked again there, and is answered or noted.
PyObject* FlatCall::left() const {
  PyErr_Clear();
  return owned(phase_).release();
}

PyObject* FlatCall::run() {
  PyObject* known = PyDict_GetItemWithError(field(kWanted), function_);
  if (known == nullptr || !attribute_is(kCapture, names().running, Py_True)) return left();
  if (known == Py_None) return call();
  if (!goes_on() || !attribute_is(kMode, names().paused, Py_False) || !nobody_else_looks()) return left();
  if (!decide()) {
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception)) return left();
    return nullptr;
  }
  if (!take_index() || !encode_inputs()) return survived("inputs") ? call() : nullptr;
  Ref output(call());
  if (!output) return raised();
  if (!goes_on()) {
    PyErr_Clear();
    if (!tell(kTooLate, output.get()) && !survived("outputs")) return nullptr;
    return output.release();
  }
  if ((!encode_outputs(output.get()) || !keep()) && !survived("outputs")) return nullptr;
  return output.release();
}

}  // namespace

PyObject* run_flat_call(PyObject* const* values) {
  if (!PyTuple_Check(values[0]) || PyTuple_Size(values[0]) != kFields || !PyTuple_Check(values[2])) {
    PyErr_Format(PyExc_TypeError, "run_flat_call(): expected a phase of %d fields and a tuple of arguments",
                 static_cast<int>(kFields));
    return nullptr;
  }
  return FlatCall(values[0], values[1], values[2], values[3], values[4]).run();
}

}  // namespace msprobe
