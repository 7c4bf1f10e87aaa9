# cython: language_level=3, wraparound=False
"""The compiled events; `event.py` is the readable twin and says what they do."""

from collections.abc import ItemsView, KeysView, Mapping, ValuesView

cimport cython
from cpython.object cimport PyTypeObject
from cpython.ref cimport PyObject

cdef enum:
    DELETE = 68
    WHOLE = 0
    GONE = 1


@cython.final
@cython.freelist(64)
cdef class Row:
    """The columns of one row that were sent."""

    cdef object _image
    cdef Py_ssize_t _row

    def __init__(self, image, Py_ssize_t row):
        self._image = image
        self._row = row

    def __getitem__(self, name):
        image = self._image
        cdef dict loaded = image.loaded
        cells = loaded.get(name)
        if cells is None:
            cells = image.cells(name)
        absent = image.absent
        if absent is not None and name in absent.names(self._row):
            raise KeyError(name)
        return cells[self._row]

    def __iter__(self):
        return iter(self._image.names_of(self._row))

    def __len__(self):
        return len(self._image.names_of(self._row))

    def __contains__(self, name):
        return name in self._image.names_of(self._row)

    def __eq__(self, other):
        if not isinstance(other, Mapping):
            return NotImplemented
        return dict(self) == dict(other)

    __hash__ = None

    def get(self, name, default=None):
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self):
        return KeysView(self)

    def items(self):
        return ItemsView(self)

    def values(self):
        return ValuesView(self)

    def __repr__(self):
        return repr(dict(self))


Mapping.register(Row)
cdef tuple NOTHING = ()


cdef class EventCore:
    """A row of a frame."""

    cdef readonly object frame
    cdef readonly Py_ssize_t row
    cdef readonly int half

    def __init__(self, frame, Py_ssize_t row, int half):
        self.frame = frame
        self.row = row
        self.half = half

    cdef bint gone(self) except -1:
        if self.half != WHOLE:
            return self.half == GONE
        cdef bytes ops = self.frame.ops
        return ops[self.row] == DELETE

    @property
    def is_gone(self):
        return self.gone()

    @property
    def key(self):
        cdef list keys
        frame = self.frame
        if self.gone():
            keys = frame.old_keys
            if keys is None:
                keys = frame.load_old_keys()
        else:
            keys = frame.new_keys
            if keys is None:
                keys = frame.load_new_keys()
        key = keys[self.row]
        if key is None:
            raise frame.key_not_sent()
        return key

    @property
    def value(self):
        cdef Row row
        if self.gone():
            return None
        row = Row.__new__(Row)
        row._image = self.frame.after
        row._row = self.row
        return row


cdef class Cursor:
    """Walks over the events of a group of frames."""

    cdef type _kind
    cdef object _more
    cdef list _frames, _rows, _halves
    cdef readonly Py_ssize_t at, end

    def __init__(self, type kind, more):
        if not issubclass(kind, EventCore):
            raise TypeError("events are of another kind")
        self._kind = kind
        self._more = more
        self.begin([], [], [], 0, 0)

    def begin(self, list frames, list rows, list halves, Py_ssize_t at, Py_ssize_t end):
        if not 0 <= at <= end <= min(len(frames), len(rows), len(halves)):
            raise ValueError("a cursor outside its group")
        self._frames, self._rows, self._halves = frames, rows, halves
        self.at, self.end = at, end

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t at
        cdef EventCore event
        if self.at >= self.end and not self._more():
            raise StopIteration
        at = self.at
        self.at = at + 1
        event = <EventCore>(<PyTypeObject*>self._kind).tp_new(self._kind, <PyObject*>NOTHING, NULL)
        event.frame = self._frames[at]
        event.row = self._rows[at]
        event.half = self._halves[at]
        return event
