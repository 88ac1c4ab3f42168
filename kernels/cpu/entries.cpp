// Dump entries of plain tensors.
//
// A call has few tensors, but a step has thousands: the Python objects of an entry (a dict, a list, four floats) and the
// bytecode that makes them cost more than reading a small tensor. Here a tensor object is asked for its address, shape
// and dtype, measured, and written down as JSON text in one go. Whatever is not plain goes to a Python callable.
#include "entries.h"

#include <cmath>

#include "number_text.h"
#include "stats.h"

namespace msprobe {

namespace {

// Work on at least this many bytes is done without the interpreter lock.
constexpr int64_t kReleaseFrom = 1 << 18;
// Addresses below are storage offsets of a freed or missing storage, not memory.
constexpr uintptr_t kLowestAddress = uintptr_t(1) << 32;

// Owns a reference.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

struct Names {
  PyObject* dtype = interned("dtype");
  PyObject* shape = interned("shape");
  PyObject* is_cpu = interned("is_cpu");
  PyObject* requires_grad = interned("requires_grad");
  PyObject* data_ptr = interned("data_ptr");
  PyObject* is_contiguous = interned("is_contiguous");
  PyObject* is_neg = interned("is_neg");
  PyObject* stride = interned("stride");
  PyObject* version = interned("_version");
};

// Tensors measured by encode_values in this process; written under the interpreter lock.
long long entries_made = 0;

const Names& names() {
  static const Names* const all = new Names;  // lives as long as the interpreter
  return *all;
}

// (types, dtypes, fragment, fallback, threads, threads_from, known) as Python passes it; borrowed.
struct Spec {
  PyObject *types, *dtypes, *fragment, *fallback, *known;
  long threads;
  long long threads_from;
};

// What `dtypes` holds for one dtype: (code, head, precision, min_exponent, largest, saturates).
struct DtypeEntry {
  Dtype dtype;
  const char* head = nullptr;
  Py_ssize_t head_size = 0;
  FloatFormat low;
};

bool read_spec(PyObject* tuple, Spec* spec) {
  if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 7) {
    PyErr_Format(PyExc_TypeError, "encode_values(): spec must be a tuple of 7, got %R", tuple);
    return false;
  }
  spec->types = PyTuple_GetItem(tuple, 0);
  spec->dtypes = PyTuple_GetItem(tuple, 1);
  spec->fragment = PyTuple_GetItem(tuple, 2);
  spec->fallback = PyTuple_GetItem(tuple, 3);
  spec->threads = PyLong_AsLong(PyTuple_GetItem(tuple, 4));
  spec->threads_from = PyLong_AsLongLong(PyTuple_GetItem(tuple, 5));
  spec->known = PyTuple_GetItem(tuple, 6);
  return !PyErr_Occurred() && PyTuple_Check(spec->types) && PyDict_Check(spec->dtypes);
}

bool is_plain_type(const Spec& spec, PyObject* value) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  for (Py_ssize_t i = 0; i < PyTuple_Size(spec.types); ++i)
    if (PyTuple_GetItem(spec.types, i) == type) return true;
  return false;
}

bool read_dtype(const Spec& spec, PyObject* tensor, DtypeEntry* entry) {
  const Ref dtype(PyObject_GetAttr(tensor, names().dtype));
  PyObject* known = dtype ? PyDict_GetItemWithError(spec.dtypes, dtype.get()) : nullptr;  // borrowed
  if (known == nullptr) return false;
  entry->dtype = dtype_of(PyLong_AsLong(PyTuple_GetItem(known, 0)));
  char* head = nullptr;
  if (PyBytes_AsStringAndSize(PyTuple_GetItem(known, 1), &head, &entry->head_size) < 0) return false;
  entry->head = head;
  entry->low.precision = static_cast<int>(PyLong_AsLong(PyTuple_GetItem(known, 2)));
  entry->low.min_exponent = static_cast<int>(PyLong_AsLong(PyTuple_GetItem(known, 3)));
  entry->low.largest = PyFloat_AsDouble(PyTuple_GetItem(known, 4));
  entry->low.saturates = PyTuple_GetItem(known, 5) == Py_True;
  return !PyErr_Occurred() && entry->dtype.kind != Kind::kUnknown;
}

// Whether attribute or method result `object` is the given boolean; an error counts as no.
bool is(const Ref& object, PyObject* expected) { return object && object.get() == expected; }

bool push_sizes(PyObject* shape, PyObject* stride, Layout* layout) {
  const Py_ssize_t ndim = PyTuple_Size(shape);
  if (ndim < 0 || ndim > kMaxDims || PyTuple_Size(stride) != ndim) return false;
  for (Py_ssize_t i = 0; i < ndim; ++i)
    layout->push(PyLong_AsLongLong(PyTuple_GetItem(shape, i)), PyLong_AsLongLong(PyTuple_GetItem(stride, i)));
  return !PyErr_Occurred();
}

bool append_shape(PyObject* shape, std::string* text, int64_t* numel) {
  *numel = 1;
  const Py_ssize_t ndim = PyTuple_Size(shape);
  if (ndim < 0) return false;
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    const long long size = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    if (size == -1 && PyErr_Occurred()) return false;  // a symbolic size
    *numel *= size;
    if (i) *text += ',';
    append_integer(*text, size);
  }
  return true;
}

// Measures the tensor. False: not plain after all.
bool measure(const Spec& spec, PyObject* tensor, PyObject* shape, int64_t numel, const Dtype& dtype, Partial* result) {
  const Ref address(PyObject_CallMethodObjArgs(tensor, names().data_ptr, nullptr));
  const Ref contiguous(address ? PyObject_CallMethodObjArgs(tensor, names().is_contiguous, nullptr) : nullptr);
  if (!contiguous) return false;
  const void* p = PyLong_AsVoidPtr(address.get());
  if (reinterpret_cast<uintptr_t>(p) < kLowestAddress) return false;
  const int64_t threads = numel >= spec.threads_from ? spec.threads : 1;
  Layout layout;
  if (contiguous.get() != Py_True) {
    const Ref stride(PyObject_CallMethodObjArgs(tensor, names().stride, nullptr));
    layout.base = static_cast<const char*>(p);
    layout.itemsize = dtype.itemsize;
    if (!stride || !push_sizes(shape, stride.get(), &layout)) return false;
  }
  PyThreadState* state = numel * dtype.itemsize >= kReleaseFrom ? PyEval_SaveThread() : nullptr;
  *result = contiguous.get() == Py_True ? stats(p, numel, dtype, threads) : stats(layout, dtype, threads);
  if (state != nullptr) PyEval_RestoreThread(state);
  return true;
}

void append_extreme(std::string& text, Kind kind, double real, int64_t integer) {
  switch (kind) {
    case Kind::kFloat: append_double(text, real); break;
    case Kind::kBool: text += integer > 0 ? "true" : "false"; break;
    case Kind::kUInt64: append_unsigned(text, static_cast<uint64_t>(integer) ^ (uint64_t(1) << 63)); break;
    default: append_integer(text, integer);
  }
}

// Appends the statistics. False: NaN, infinite or beyond the range in which sums of squares are trusted.
bool append_statistics(std::string& text, const Partial& r, const DtypeEntry& entry, int64_t numel) {
  const bool real = entry.dtype.kind == Kind::kFloat;
  const double sum = real ? r.sum : static_cast<double>(r.isum);
  const double squares = real || entry.dtype.itemsize == 8 ? r.sumsq : static_cast<double>(r.isumsq);
  const bool zero = squares == 0 && (real ? r.max == 0 && r.min == 0 : r.imax == 0 && r.imin == 0);
  if (!zero && !(squares > 1e-290 && squares < 1e300)) return false;
  text += "],\"Max\":";
  append_extreme(text, entry.dtype.kind, r.max, r.imax);
  text += ",\"Min\":";
  append_extreme(text, entry.dtype.kind, r.min, r.imin);
  text += ",\"Mean\":";
  append_double(text, round_to(entry.low, sum / static_cast<double>(numel)));
  text += ",\"Norm\":";
  append_double(text, round_to(entry.low, std::sqrt(squares)));
  return true;
}

// The entry of a plain tensor as JSON; false with no exception set if Python has to do it.
bool tensor_text(const Spec& spec, PyObject* tensor, std::string* text) {
  DtypeEntry entry;
  if (!read_dtype(spec, tensor, &entry)) return false;
  if (!is(Ref(PyObject_GetAttr(tensor, names().is_cpu)), Py_True)) return false;
  if (!is(Ref(PyObject_CallMethodObjArgs(tensor, names().is_neg, nullptr)), Py_False)) return false;
  const Ref shape(PyObject_GetAttr(tensor, names().shape));
  if (!shape || !PyTuple_Check(shape.get())) return false;
  text->assign(entry.head, static_cast<size_t>(entry.head_size));
  int64_t numel = 0;
  Partial result;
  if (!append_shape(shape.get(), text, &numel) || numel == 0) return false;
  if (!measure(spec, tensor, shape.get(), numel, entry.dtype, &result)) return false;
  if (!append_statistics(*text, result, entry, numel)) return false;
  const Ref requires_grad(PyObject_GetAttr(tensor, names().requires_grad));
  *text += is(requires_grad, Py_True) ? ",\"requires_grad\":true}" : ",\"requires_grad\":false}";
  return static_cast<bool>(requires_grad);
}

// Entries of tensors that are known not to have changed: {id: (weak reference, version, entry)}. The reference tells a
// tensor from another one that got its address.
class Known {
 public:
  Known(PyObject* dict, PyObject* tensor) : dict_(PyDict_Check(dict) ? dict : nullptr), tensor_(tensor) {
    if (dict_ == nullptr) return;
    key_ = PyLong_FromVoidPtr(tensor);
    version_ = PyObject_GetAttr(tensor, names().version);
    if (version_ == nullptr) PyErr_Clear();  // inference tensors have none
  }
  ~Known() {
    Py_XDECREF(key_);
    Py_XDECREF(version_);
  }
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;

  // The entry (borrowed), or null.
  PyObject* find() const {
    if (key_ == nullptr || version_ == nullptr) return nullptr;
    PyObject* found = PyDict_GetItemWithError(dict_, key_);
    if (found == nullptr) return nullptr;
    if (PyWeakref_GetObject(PyTuple_GetItem(found, 0)) != tensor_) return nullptr;
    return PyObject_RichCompareBool(PyTuple_GetItem(found, 1), version_, Py_EQ) == 1 ? PyTuple_GetItem(found, 2)
                                                                                   : nullptr;
  }

  void keep(PyObject* entry) const {
    if (key_ == nullptr || version_ == nullptr) return;
    const Ref reference(PyWeakref_NewRef(tensor_, nullptr));
    const Ref value(reference ? PyTuple_Pack(3, reference.get(), version_, entry) : nullptr);
    if (!value || PyDict_SetItem(dict_, key_, value.get()) < 0) PyErr_Clear();
  }

 private:
  PyObject* dict_;
  PyObject* tensor_;
  PyObject* key_ = nullptr;
  PyObject* version_ = nullptr;
};

PyObject* encode_one(const Spec& spec, PyObject* value, std::string* text) {
  if (value == Py_None) {
    Py_INCREF(value);
    return value;
  }
  if (is_plain_type(spec, value)) {
    const Known known(spec.known, value);
    if (PyObject* entry = known.find()) {
      Py_INCREF(entry);
      return entry;
    }
    if (tensor_text(spec, value, text)) {
      const Ref bytes(PyBytes_FromStringAndSize(text->data(), static_cast<Py_ssize_t>(text->size())));
      PyObject* entry = bytes ? PyObject_CallFunctionObjArgs(spec.fragment, bytes.get(), nullptr) : nullptr;
      if (entry != nullptr) {
        ++entries_made;
        known.keep(entry);
      }
      return entry;
    }
    PyErr_Clear();  // asking an unusual tensor may raise; the fallback finds out why
  }
  return PyObject_CallFunctionObjArgs(spec.fallback, value, nullptr);
}

}  // namespace

PyObject* encoded_count() { return PyLong_FromLongLong(entries_made); }

PyObject* encode_values(PyObject* values, PyObject* spec_tuple) {
  Spec spec;
  if (!read_spec(spec_tuple, &spec)) return nullptr;
  const Ref sequence(PySequence_Tuple(values));
  if (!sequence) return nullptr;
  const Py_ssize_t count = PyTuple_Size(sequence.get());
  PyObject* result = PyList_New(count);
  std::string text;
  for (Py_ssize_t i = 0; result != nullptr && i < count; ++i) {
    PyObject* entry = encode_one(spec, PyTuple_GetItem(sequence.get(), i), &text);
    if (entry == nullptr) {
      Py_DECREF(result);
      return nullptr;
    }
    PyList_SetItem(result, i, entry);
  }
  return result;
}

}  // namespace msprobe
