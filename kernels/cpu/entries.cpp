// Dump entries of plain values.
//
// A call has few tensors, but a step has thousands: the Python objects of an entry (a dict, a list, four floats) and the
// bytecode that makes them cost more than reading a small tensor. Here the arguments of a call are read, measured, and
// written down as one piece of JSON text. Whatever is not plain goes to a Python callable.
#include "entries.h"

#include <cmath>
#include <string>
#include <vector>

#include "number_text.h"
#include "stats.h"
#include "tensor_object.h"

namespace msprobe {

namespace {

// Work on at least this many bytes is done without the interpreter lock.
constexpr int64_t kReleaseFrom = 1 << 18;
constexpr const char* kCapsule = "msprobe.encoder";

struct Names {
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* version = PyUnicode_InternFromString("_version");
};

// Tensors measured by encoders in this process; written under the interpreter lock.
long long entries_made = 0;

const Names& names() { return interned<Names>(); }

// What is known of one dtype: (dtype, code, head, precision, min_exponent, largest, saturates).
struct DtypeEntry {
  PyObject* object = nullptr;  // lives as long as the framework
  Dtype dtype;
  std::string head;
  FloatFormat low;
};

bool read_dtype(PyObject* row, DtypeEntry* entry) {
  char* head = nullptr;
  Py_ssize_t head_size = 0;
  if (!PyTuple_Check(row) || PyTuple_Size(row) != 7) return false;
  entry->object = PyTuple_GetItem(row, 0);
  entry->dtype = dtype_of(PyLong_AsLong(PyTuple_GetItem(row, 1)));
  if (PyBytes_AsStringAndSize(PyTuple_GetItem(row, 2), &head, &head_size) < 0) return false;
  entry->head.assign(head, static_cast<size_t>(head_size));
  entry->low.precision = static_cast<int>(PyLong_AsLong(PyTuple_GetItem(row, 3)));
  entry->low.min_exponent = static_cast<int>(PyLong_AsLong(PyTuple_GetItem(row, 4)));
  entry->low.largest = PyFloat_AsDouble(PyTuple_GetItem(row, 5));
  entry->low.saturates = PyTuple_GetItem(row, 6) == Py_True;
  return !PyErr_Occurred() && entry->dtype.kind != Kind::kUnknown;
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

// Appends a number as `SCALARS` of the encoder in Python writes it. False: not one that is written here.
bool append_number(PyObject* value, std::string& text) {
  if (value == Py_True || value == Py_False) {
    text += value == Py_True ? "{\"type\":\"bool\",\"value\":true}" : "{\"type\":\"bool\",\"value\":false}";
    return true;
  }
  if (PyLong_CheckExact(value)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    text += "{\"type\":\"int\",\"value\":";
    append_integer(text, number);
    text += '}';
    return true;
  }
  if (!PyFloat_CheckExact(value)) return false;
  const double number = PyFloat_AsDouble(value);
  if (!std::isfinite(number)) return false;
  text += "{\"type\":\"float\",\"value\":";
  append_double(text, number);
  text += '}';
  return true;
}

// What an entry says of the content besides, or instead of, statistics.
enum class Checksum { kNone, kCrc32, kXor64, kHash64 };

void append_hex(std::string& text, uint64_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += "0123456789abcdef"[(value >> shift) & 15];
}

// Encodes values with one setting.
class Encoder {
 public:
  // (types, dtypes, fragment, fallback, threads, threads_from, known, exchange, checksum); null with an exception if it is
  // wrong.
  static Encoder* make(PyObject* spec);
  ~Encoder() { Py_DECREF(spec_); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Whether `value` is of a class that append() may be able to write.
  bool plain_type(PyObject* value) const;

  // Appends the entry of `value`. False: the fallback has to do it; no exception is set.
  bool append(PyObject* value, std::string& text);

  // New references; null with an exception set if they fail.
  PyObject* fragment(const char* text, size_t size) const;
  PyObject* fallback(PyObject* value) const { return PyObject_CallFunctionObjArgs(fallback_, value, nullptr); }

 private:
  Encoder(PyObject* spec, PyObject* exchange) : spec_(spec), reader_(exchange) { Py_INCREF(spec); }
  const DtypeEntry* dtype_of_tensor(PyObject* tensor) const;
  bool append_tensor(PyObject* tensor, std::string& text) const;
  Partial measure(const Elements& elements, const Dtype& dtype) const;
  uint64_t checksum(const Elements& elements, int itemsize) const;

  PyObject* spec_;  // owns what the other pointers borrow
  TensorReader reader_;
  PyObject *types_ = nullptr, *fragment_ = nullptr, *fallback_ = nullptr, *known_ = nullptr;
  std::vector<DtypeEntry> dtypes_;
  int64_t threads_ = 1, threads_from_ = 0;
  Checksum checksum_ = Checksum::kNone;
};

Encoder* Encoder::make(PyObject* spec) {
  if (!PyTuple_Check(spec) || PyTuple_Size(spec) != 9 || !PyTuple_Check(PyTuple_GetItem(spec, 0)) ||
      !PyTuple_Check(PyTuple_GetItem(spec, 1))) {
    PyErr_Format(PyExc_TypeError, "make_encoder(): expected a tuple of 9 that begins with two tuples, got %R", spec);
    return nullptr;
  }
  auto* encoder = new Encoder(spec, PyTuple_GetItem(spec, 7));
  encoder->types_ = PyTuple_GetItem(spec, 0);
  encoder->fragment_ = PyTuple_GetItem(spec, 2);
  encoder->fallback_ = PyTuple_GetItem(spec, 3);
  encoder->threads_ = PyLong_AsLongLong(PyTuple_GetItem(spec, 4));
  encoder->threads_from_ = PyLong_AsLongLong(PyTuple_GetItem(spec, 5));
  encoder->known_ = PyTuple_GetItem(spec, 6);
  encoder->checksum_ = static_cast<Checksum>(PyLong_AsLong(PyTuple_GetItem(spec, 8)));
  PyObject* rows = PyTuple_GetItem(spec, 1);
  encoder->dtypes_.resize(static_cast<size_t>(PyTuple_Size(rows)));
  bool readable = !PyErr_Occurred();
  for (size_t i = 0; readable && i < encoder->dtypes_.size(); ++i)
    readable = read_dtype(PyTuple_GetItem(rows, static_cast<Py_ssize_t>(i)), &encoder->dtypes_[i]);
  if (readable) return encoder;
  delete encoder;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "make_encoder(): a row of dtypes is not understood");
  return nullptr;
}

bool Encoder::plain_type(PyObject* value) const {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  for (Py_ssize_t i = 0; i < PyTuple_Size(types_); ++i)
    if (PyTuple_GetItem(types_, i) == type) return true;
  return false;
}

const DtypeEntry* Encoder::dtype_of_tensor(PyObject* tensor) const {
  const Ref dtype(PyObject_GetAttr(tensor, names().dtype));
  for (const DtypeEntry& entry : dtypes_)
    if (entry.object == dtype.get()) return &entry;
  return nullptr;
}

Partial Encoder::measure(const Elements& elements, const Dtype& dtype) const {
  const int64_t threads = elements.numel >= threads_from_ ? threads_ : 1;
  PyThreadState* state = elements.numel * dtype.itemsize >= kReleaseFrom ? PyEval_SaveThread() : nullptr;
  const Partial found = elements.contiguous() ? stats(elements.data, elements.numel, dtype, threads)
                                              : stats(elements.layout(dtype.itemsize), dtype, threads);
  if (state != nullptr) PyEval_RestoreThread(state);
  return found;
}

uint64_t Encoder::checksum(const Elements& elements, int itemsize) const {
  const int64_t threads = elements.numel >= threads_from_ ? threads_ : 1;
  const Layout layout = elements.layout(itemsize);
  PyThreadState* state = elements.numel * itemsize >= kReleaseFrom ? PyEval_SaveThread() : nullptr;
  uint64_t found = 0;
  switch (checksum_) {
    case Checksum::kCrc32: found = crc32(0, layout); break;
    case Checksum::kXor64: found = xor64(layout, threads); break;
    case Checksum::kHash64: found = hash64(layout, elements.size, elements.ndim, threads); break;
    case Checksum::kNone: break;
  }
  if (state != nullptr) PyEval_RestoreThread(state);
  return found;
}

bool Encoder::append_tensor(PyObject* tensor, std::string& text) const {
  const DtypeEntry* entry = dtype_of_tensor(tensor);
  if (entry == nullptr) return false;
  Elements elements;
  if (!reader_.read(tensor, &elements)) return false;
  const Ref negated(PyObject_CallMethodObjArgs(tensor, names().is_neg, nullptr));
  if (negated.get() != Py_False) return false;
  const Ref requires_grad(PyObject_GetAttr(tensor, names().requires_grad));
  if (!requires_grad) return false;
  text += entry->head;
  for (int i = 0; i < elements.ndim; ++i) {
    if (i) text += ',';
    append_integer(text, elements.size[i]);
  }
  const bool instead = checksum_ == Checksum::kXor64 || checksum_ == Checksum::kHash64;
  if (instead) {
    text += "],\"md5\":\"0x";
    append_hex(text, checksum(elements, entry->dtype.itemsize), 16);
    text += '"';
  } else if (!append_statistics(text, measure(elements, entry->dtype), *entry, elements.numel)) {
    return false;
  }
  text += requires_grad.get() == Py_True ? ",\"requires_grad\":true" : ",\"requires_grad\":false";
  if (checksum_ == Checksum::kCrc32) {
    text += ",\"md5\":\"";
    append_hex(text, checksum(elements, entry->dtype.itemsize), 8);
    text += '"';
  }
  text += '}';
  return true;
}

// Entries of tensors that are known not to have changed: {id: (weak reference, version, text)}. The reference tells a
// tensor from another one that got its address.
class Known {
 public:
  Known(PyObject* dict, PyObject* tensor) : dict_(PyDict_Check(dict) ? dict : nullptr), tensor_(tensor) {
    if (dict_ == nullptr) return;
    key_ = Ref(PyLong_FromVoidPtr(tensor));
    version_ = Ref(PyObject_GetAttr(tensor, names().version));
    if (!version_) PyErr_Clear();  // inference tensors have none
  }

  // The text (bytes, borrowed), or null.
  PyObject* find() const {
    if (!key_ || !version_) return nullptr;
    PyObject* found = PyDict_GetItemWithError(dict_, key_.get());
    if (found == nullptr || PyWeakref_GetObject(PyTuple_GetItem(found, 0)) != tensor_) return nullptr;
    const bool same = PyObject_RichCompareBool(PyTuple_GetItem(found, 1), version_.get(), Py_EQ) == 1;
    return same ? PyTuple_GetItem(found, 2) : nullptr;
  }

  void keep(const char* text, size_t size) const {
    if (!key_ || !version_) return;
    const Ref reference(PyWeakref_NewRef(tensor_, nullptr));
    const Ref bytes(PyBytes_FromStringAndSize(text, static_cast<Py_ssize_t>(size)));
    const Ref value(reference && bytes ? PyTuple_Pack(3, reference.get(), version_.get(), bytes.get()) : nullptr);
    if (!value || PyDict_SetItem(dict_, key_.get(), value.get()) < 0) PyErr_Clear();
  }

 private:
  PyObject* dict_;
  PyObject* tensor_;
  Ref key_;
  Ref version_;
};

bool Encoder::append(PyObject* value, std::string& text) {
  if (!plain_type(value)) return append_number(value, text);
  const Known known(known_, value);
  if (PyObject* before = known.find()) {
    text.append(PyBytes_AsString(before), static_cast<size_t>(PyBytes_Size(before)));
    return true;
  }
  const size_t start = text.size();
  if (append_tensor(value, text)) {
    ++entries_made;
    known.keep(text.data() + start, text.size() - start);
    return true;
  }
  PyErr_Clear();  // asking an unusual tensor may raise; the fallback finds out why
  text.resize(start);
  return false;
}

PyObject* Encoder::fragment(const char* text, size_t size) const {
  const Ref bytes(PyBytes_FromStringAndSize(text, static_cast<Py_ssize_t>(size)));
  return bytes ? PyObject_CallFunctionObjArgs(fragment_, bytes.get(), nullptr) : nullptr;
}

void destroy(PyObject* capsule) { delete static_cast<Encoder*>(PyCapsule_GetPointer(capsule, kCapsule)); }

Encoder* encoder_of(PyObject* capsule) { return static_cast<Encoder*>(PyCapsule_GetPointer(capsule, kCapsule)); }

// Entries as they are encoded: one text as long as all are plain, separate objects from the first other one on.
class Entries {
 public:
  Entries(Encoder& encoder, size_t count, char open) : encoder_(encoder), text_(1, open) {
    text_.reserve(256 * count + 2);
    ends_.reserve(count);
  }

  // `key` is the JSON text in front of the entry. False: an exception is set.
  bool add(PyObject* value, const std::string& key) {
    if (!ends_.empty()) text_ += ',';
    text_ += key;
    const size_t start = text_.size();
    Ref other;
    if (value == Py_None) {
      Py_INCREF(value);
      other = Ref(value);
    } else if (!encoder_.append(value, text_)) {
      other = Ref(encoder_.fallback(value));
      if (!other) return false;
    }
    all_plain_ = all_plain_ && !other;
    ends_.push_back({start, text_.size(), std::move(other)});
    return true;
  }

  bool all_plain() const { return all_plain_; }

  // All of it, ended by `close`.
  std::string together(char close) {
    text_ += close;
    return std::move(text_);
  }

  PyObject* entry(size_t i) {
    if (ends_[i].other) return ends_[i].other.release();
    return encoder_.fragment(text_.data() + ends_[i].start, ends_[i].end - ends_[i].start);
  }

 private:
  struct End {
    size_t start, end;
    Ref other;
  };

  Encoder& encoder_;
  std::string text_;
  std::vector<End> ends_;
  bool all_plain_ = true;
};

// Appends `"key":`. False: the key is not text that is written as it is.
bool quoted(PyObject* key, std::string* text) {
  if (!PyUnicode_Check(key)) return false;
  Py_ssize_t size = 0;
  const char* name = PyUnicode_AsUTF8AndSize(key, &size);
  if (name == nullptr) {
    PyErr_Clear();  // a lone surrogate
    return false;
  }
  for (Py_ssize_t i = 0; i < size; ++i)
    if (name[i] < ' ' || name[i] == '"' || name[i] == '\\' || name[i] == 127) return false;
  text->assign(1, '"').append(name, static_cast<size_t>(size)).append("\":");
  return true;
}

}  // namespace

PyObject* encoded_count() { return PyLong_FromLongLong(entries_made); }

PyObject* make_encoder(PyObject* spec) {
  Encoder* encoder = Encoder::make(spec);
  return encoder != nullptr ? PyCapsule_New(encoder, kCapsule, destroy) : nullptr;
}

PyObject* encode_value(PyObject* value, PyObject* capsule) {
  Encoder* encoder = encoder_of(capsule);
  if (encoder == nullptr) return nullptr;
  std::string text;
  text.reserve(256);
  if (value == Py_None) Py_RETURN_NONE;
  return encoder->append(value, text) ? encoder->fragment(text.data(), text.size()) : encoder->fallback(value);
}

bool encode_list(PyObject* values, PyObject* capsule, Encoded* found) {
  Encoder* encoder = encoder_of(capsule);
  const Ref sequence(encoder != nullptr ? PySequence_Tuple(values) : nullptr);
  if (!sequence) return false;
  const Py_ssize_t count = PyTuple_Size(sequence.get());
  static const std::string no_key;
  Entries entries(*encoder, static_cast<size_t>(count), '[');
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!entries.add(PyTuple_GetItem(sequence.get(), i), no_key)) return false;
  if (entries.all_plain()) {
    found->text = entries.together(']');
    return true;
  }
  Ref list(PyList_New(count));
  for (Py_ssize_t i = 0; list && i < count; ++i) {
    PyObject* entry = entries.entry(static_cast<size_t>(i));
    if (entry == nullptr) return false;
    PyList_SetItem(list.get(), i, entry);
  }
  found->other = std::move(list);
  return static_cast<bool>(found->other);
}

bool encode_dict(PyObject* mapping, PyObject* capsule, Encoded* found) {
  Encoder* encoder = encoder_of(capsule);
  if (encoder == nullptr) return false;
  if (!PyDict_Check(mapping)) {
    PyErr_Format(PyExc_TypeError, "encode_pairs(): expected a dict, got %R", mapping);
    return false;
  }
  Entries entries(*encoder, static_cast<size_t>(PyDict_Size(mapping)), '{');
  std::vector<Ref> keys;
  std::vector<std::string> quoted_keys;
  PyObject *key, *value;
  std::string text;
  // Snapshot first: the fallback runs Python code, which may change the mapping.
  std::vector<Ref> values;
  for (Py_ssize_t at = 0; PyDict_Next(mapping, &at, &key, &value);) {
    if (!quoted(key, &text)) return true;
    Py_INCREF(key);
    Py_INCREF(value);
    keys.emplace_back(key);
    quoted_keys.push_back(text);
    values.emplace_back(value);
  }
  for (size_t i = 0; i < keys.size(); ++i)
    if (!entries.add(values[i].get(), quoted_keys[i])) return false;
  if (entries.all_plain()) {
    found->text = entries.together('}');
    return true;
  }
  Ref entries_by_key(PyDict_New());
  for (size_t i = 0; entries_by_key && i < keys.size(); ++i) {
    const Ref entry(entries.entry(i));
    if (!entry || PyDict_SetItem(entries_by_key.get(), keys[i].get(), entry.get()) < 0) return false;
  }
  found->other = std::move(entries_by_key);
  return static_cast<bool>(found->other);
}

PyObject* json_fragment(const std::string& text, PyObject* capsule) {
  Encoder* encoder = encoder_of(capsule);
  return encoder != nullptr ? encoder->fragment(text.data(), text.size()) : nullptr;
}

PyObject* Encoded::object(PyObject* capsule) const {
  if (!other) return json_fragment(text, capsule);
  Py_INCREF(other.get());
  return other.get();
}

PyObject* encode_values(PyObject* values, PyObject* capsule) {
  Encoded found;
  return encode_list(values, capsule, &found) ? found.object(capsule) : nullptr;
}

PyObject* encode_pairs(PyObject* mapping, PyObject* capsule) {
  Encoded found;
  if (!encode_dict(mapping, capsule, &found)) return nullptr;
  if (found.empty()) Py_RETURN_NONE;
  return found.object(capsule);
}

}  // namespace msprobe
