// SPDX-License-Identifier: MIT
/*
 * CPython 3.10: co_qualname for code objects, which lack it.
 *
 * The compiler knows the name and stores it in the enclosing code: MAKE_FUNCTION takes it
 * from the constant that is loaded last before, and the body of a class begins by storing
 * it as __qualname__. So the names of all nested code objects follow from the enclosing
 * one, to any depth, and are stored on them (co_extra) at once.
 *
 * The code of a module is seen when it is executed. For modules that were executed
 * before, living functions are searched: at the first code object without a name, all
 * functions and the frames of generators and threads are examined. Code that gives the
 * names of nested code comes first, so that a changed __qualname__ of a function, as by a
 * decorator, has no effect. If nothing else gives a name, the function's own __qualname__
 * is used, if it ends with the name of its code. Otherwise the name of the code is used.
 */
#include "mark.h"
#include "qualname.h"

#include <frameobject.h>
#include <opcode.h>

static void drop_name(void *name)
{
	Py_XDECREF((PyObject *)name);
}

int names_prepare(struct names *names)
{
	Py_ssize_t index;
	PyObject *gc;

	if (names->index)
		return 0;
	/* Import now: an import while calls are reported would request names itself. */
	gc = PyImport_ImportModule("gc");
	if (!gc)
		return -1;
	Py_DECREF(gc);
	index = _PyEval_RequestCodeExtraIndex(drop_name);
	if (index < 0) {
		PyErr_SetString(
			PyExc_RuntimeError,
			"no room on code objects: too many extensions use co_extra");
		return -1;
	}
	names->index = index + 1;
	return 0;
}

void names_forget(struct names *names)
{
	names->searched = false;
}

/* Borrowed; NULL: unknown. */
static PyObject *known_name(struct names *names, PyObject *code)
{
	void *name = NULL;

	_PyCode_GetExtra(code, names->index - 1, &name);
	return name;
}

/* ------------------------------------------------------------------ bytecode */

struct instruction {
	int opcode;
	unsigned int argument;
};

/* The next instruction of @code at *@at, with its EXTENDED_ARG. */
static bool next_instruction(PyCodeObject *code, Py_ssize_t *at,
			     struct instruction *instruction)
{
	Py_ssize_t end =
		PyBytes_GET_SIZE(code->co_code) / (Py_ssize_t)sizeof(_Py_CODEUNIT);
	const _Py_CODEUNIT *words = (const void *)PyBytes_AS_STRING(code->co_code);
	unsigned int argument = 0;

	while (*at < end) {
		_Py_CODEUNIT word = words[(*at)++];

		argument = argument << 8 | _Py_OPARG(word);
		if (_Py_OPCODE(word) != EXTENDED_ARG) {
			*instruction = (struct instruction){ _Py_OPCODE(word), argument };
			return true;
		}
	}
	return false;
}

/* The constant that it loads; NULL: it is another instruction. */
static PyObject *constant(PyCodeObject *code, struct instruction instruction)
{
	if (instruction.opcode != LOAD_CONST ||
	    instruction.argument >= (size_t)PyTuple_GET_SIZE(code->co_consts))
		return NULL;
	return PyTuple_GET_ITEM(code->co_consts, instruction.argument);
}

static bool stores(PyCodeObject *code, struct instruction instruction, const char *name)
{
	return instruction.opcode == STORE_NAME &&
	       instruction.argument < (size_t)PyTuple_GET_SIZE(code->co_names) &&
	       PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(code->co_names,
								 instruction.argument),
						name) == 0;
}

/*
 * The name that the body of a class stores as __qualname__; NULL: @code is not one. Only
 * the store of __module__ and the creation of cells may precede it.
 */
static PyObject *class_name(PyCodeObject *code)
{
	struct instruction instruction, before = { 0 };
	Py_ssize_t at = 0;

	if (code->co_flags & (CO_OPTIMIZED | CO_NEWLOCALS))
		return NULL;
	for (int i = 0; i < 4 && next_instruction(code, &at, &instruction); i++) {
		PyObject *name = constant(code, before);

		if (stores(code, instruction, "__qualname__"))
			return name && PyUnicode_Check(name) ? name : NULL;
		before = instruction;
	}
	return NULL;
}

/* ------------------------------------------------------------------- learning */

static void learn_within(struct names *names, PyCodeObject *code);

/* Store the name of @code, unless it is known, and those of nested code. */
static void learn(struct names *names, PyObject *code, PyObject *name)
{
	if (known_name(names, code))
		return;
	if (mark_put_extra(code, names->index - 1, Py_NewRef(name))) {
		Py_DECREF(name);
		return;
	}
	learn_within(names, (PyCodeObject *)code);
}

static void learn_within(struct names *names, PyCodeObject *code)
{
	struct instruction instruction, two[2] = { { 0 }, { 0 } };
	Py_ssize_t at = 0;

	for (; next_instruction(code, &at, &instruction);
	     two[0] = two[1], two[1] = instruction) {
		PyObject *inner = constant(code, two[0]), *name = constant(code, two[1]);

		if (instruction.opcode != MAKE_FUNCTION || !inner ||
		    !PyCode_Check(inner) || !name || !PyUnicode_Check(name))
			continue;
		if (class_name((PyCodeObject *)inner))
			name = class_name((PyCodeObject *)inner);
		learn(names, inner, name);
	}
}

/* Whether @name can belong to code with the name @last. */
static bool ends_as(PyObject *name, PyObject *last)
{
	Py_ssize_t length = PyUnicode_GET_LENGTH(name) - PyUnicode_GET_LENGTH(last);

	if (length < 0 ||
	    PyUnicode_Tailmatch(name, last, 0, PyUnicode_GET_LENGTH(name), 1) != 1)
		return false;
	return length == 0 || PyUnicode_READ_CHAR(name, length - 1) == '.';
}

/* -------------------------------------------------------------- looking around */

typedef void (*visit_code)(struct names *names, PyObject *code, PyObject *name);

static void visit_within(struct names *names, PyObject *code, PyObject *Py_UNUSED(name))
{
	learn_within(names, (PyCodeObject *)code);
}

static void visit_itself(struct names *names, PyObject *code, PyObject *name)
{
	if (name && PyUnicode_Check(name) &&
	    ends_as(name, ((PyCodeObject *)code)->co_name))
		learn(names, code, name);
}

static void visit_frames(struct names *names, visit_code visit)
{
	PyInterpreterState *interpreter = PyThreadState_Get()->interp;
	PyThreadState *thread;

	for (thread = PyInterpreterState_ThreadHead(interpreter); thread;
	     thread = PyThreadState_Next(thread))
		for (PyFrameObject *frame = thread->frame; frame; frame = frame->f_back)
			visit(names, (PyObject *)frame->f_code, NULL);
}

static void visit_objects(struct names *names, PyObject *objects, visit_code visit)
{
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
		PyObject *object = PyList_GET_ITEM(objects, i);

		if (PyFunction_Check(object)) {
			PyFunctionObject *function = (PyFunctionObject *)object;

			visit(names, function->func_code, function->func_qualname);
		} else if (PyGen_CheckExact(object) || PyCoro_CheckExact(object) ||
			   PyAsyncGen_CheckExact(object)) {
			PyGenObject *generator = (PyGenObject *)object;

			visit(names, generator->gi_code, generator->gi_qualname);
		}
	}
}

static void look_around(struct names *names)
{
	PyObject *name = PyUnicode_FromString("gc"), *gc = NULL, *objects = NULL;

	names->searched = true;
	if (name)
		gc = PyImport_GetModule(name);
	if (gc)
		objects = PyObject_CallMethod(gc, "get_objects", NULL);
	visit_frames(names, visit_within);
	if (objects && PyList_CheckExact(objects)) {
		visit_objects(names, objects, visit_within);
		visit_objects(names, objects, visit_itself);
	}
	Py_XDECREF(objects);
	Py_XDECREF(gc);
	Py_XDECREF(name);
	PyErr_Clear();
}

PyObject *qualname_of(struct names *names, PyObject *code)
{
	PyCodeObject *co = (PyCodeObject *)code;
	PyObject *type, *value, *traceback, *name = known_name(names, code);

	if (name)
		return Py_NewRef(name);
	PyErr_Fetch(&type, &value, &traceback);
	name = class_name(co);
	if (name) {
		learn(names, code, name);
	} else if (PyUnicode_CompareWithASCIIString(co->co_name, "<module>") == 0) {
		learn(names, code, co->co_name);
	} else if (!names->searched) {
		look_around(names);
	}
	if (!known_name(names, code))
		learn(names, code, co->co_name);
	name = known_name(names, code);
	PyErr_Restore(type, value, traceback);
	return Py_XNewRef(name);
}
