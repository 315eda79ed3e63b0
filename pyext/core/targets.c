// SPDX-License-Identifier: MIT
#include <errno.h>
#include <string.h>

#include "errors.h"
#include "records.h"
#include "targets.h"
#include "types.h"

static PyObject *option(const struct sb_spec *spec, unsigned int bit, uint64_t value)
{
	if (!(sb_spec_given(spec) & bit))
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(value);
}

/* As they are written in a text. */
static const char *const modes[] = {
	[SB_DELAY_SPIN] = "spin",
	[SB_DELAY_SLEEP] = "sleep",
	[SB_DELAY_WAIT] = "wait",
};

static const char *const dists[] = {
	[SB_DELAY_FIXED] = "fixed",
	[SB_DELAY_EXP] = "exp",
	[SB_DELAY_UNIFORM] = "uniform",
	[SB_DELAY_LOGNORMAL] = "lognormal",
};

static PyObject *target_record(struct records *records, const struct sb_spec *spec)
{
	const char *thread = sb_spec_thread(spec);
	uint32_t ppm = sb_spec_delay_ppm(spec);
	PyObject *values[] = {
		value_int((long)sb_spec_kind(spec)),
		value_text(sb_spec_left(spec)),
		value_text(sb_spec_right(spec)),
		option(spec, ppm ? 0 : SB_SPEC_DELAY, sb_spec_delay_ns(spec)),
		option(spec, SB_SPEC_EVERY, sb_spec_every(spec)),
		option(spec, SB_SPEC_START, sb_spec_start_ns(spec)),
		option(spec, SB_SPEC_DURATION, sb_spec_duration_ns(spec)),
		option(spec, SB_SPEC_RESUME, sb_spec_resume(spec)),
		option(spec, SB_SPEC_PID, (uint64_t)sb_spec_pid(spec)),
		value_u64(sb_spec_line(spec)),
		PyUnicode_InternFromString(modes[sb_spec_mode(spec)]),
		PyUnicode_InternFromString(dists[sb_spec_dist(spec)]),
		PyFloat_FromDouble(sb_spec_sigma(spec)),
		thread ? value_text(thread) : Py_NewRef(Py_None),
		value_u64(ppm),
	};

	return record_of(records, RECORD_PARSED_TARGET, values);
}

PyObject *targets_parse(PyObject *module, PyObject *args)
{
	struct records *records = records_of(module);
	PyObject *name = NULL, *list = NULL;
	struct sb_specs *specs;
	struct sb_error *err;
	const char *text;
	Py_ssize_t length;

	if (!records || !PyArg_ParseTuple(args, "y#O&:parse_targets", &text, &length,
					  PyUnicode_FSConverter, &name))
		return NULL;
	err = sb_error_new();
	specs = sb_specs_parse(text, (size_t)length, PyBytes_AS_STRING(name),
			       SB_SPEC_FILE, err);
	Py_DECREF(name);
	if (!specs)
		return raise_error(err, errno);
	sb_error_free(err);

	list = PyList_New((Py_ssize_t)sb_specs_count(specs));
	for (size_t i = 0; list && i < sb_specs_count(specs); i++) {
		PyObject *target = target_record(records, sb_specs_get(specs, i));

		if (target)
			PyList_SET_ITEM(list, (Py_ssize_t)i, target);
		else
			Py_CLEAR(list);
	}
	sb_specs_free(specs);
	return list;
}

PyObject *targets_glob_match(PyObject *Py_UNUSED(module), PyObject *args)
{
	const char *glob, *text;

	if (!PyArg_ParseTuple(args, "ss:glob_match", &glob, &text))
		return NULL;
	return PyBool_FromLong(sb_glob_match(glob, text));
}

PyObject *targets_parse_duration(PyObject *Py_UNUSED(module), PyObject *text)
{
	Py_ssize_t length;
	const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
	uint64_t ns;

	if (!utf8)
		return NULL;
	errno = EINVAL;
	if (strlen(utf8) != (size_t)length || sb_duration_parse(utf8, &ns))
		return PyErr_Format(PyExc_ValueError,
				    errno == ERANGE ? "%R is too long a time" :
						      "%R is not a time such as 500, "
						      "10us or 1.5ms",
				    text);
	return PyLong_FromUnsignedLongLong(ns);
}

PyObject *targets_format_duration(PyObject *Py_UNUSED(module), PyObject *arg)
{
	uint64_t ns = PyLong_AsUnsignedLongLong(arg);
	char text[64];

	if (ns == UINT64_MAX && PyErr_Occurred())
		return NULL;
	if (sb_duration_format(ns, text, sizeof(text)) < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	return PyUnicode_FromString(text);
}
