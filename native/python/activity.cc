// Counters for `tf-adapter top`, recordings for `tf-adapter profile` and the observer of tasks, for Python.
#include "core/activity.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/module.h"
#include "runtime/observer.h"
#include "runtime/recording.h"

namespace npu::python {
namespace {

using namespace nb::literals;

nb::object to_array(std::vector<RecordedSpan> spans) {
  static_assert(sizeof(RecordedSpan) == 5 * sizeof(std::int64_t));
  auto* kept = new std::vector<RecordedSpan>(std::move(spans));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<RecordedSpan>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>(kept->data(), {kept->size(), 5}, owner));
}

nb::tuple take_recording() {
  Recording::Taken taken = Recording::take();
  nb::list programs;
  for (const auto& [number, record] : taken.programs) {
    programs.append(
        nb::make_tuple(number, record.name, record.runs, record.nanoseconds, record.calls, record.self));
  }
  return nb::make_tuple(programs, to_array(std::move(taken.spans)), taken.dropped);
}

// Calls a Python function for every task of every run. Its exceptions do not affect the run.
void set_observer(nb::object function) {
  if (function.is_none()) return Observer::set({});
  const std::shared_ptr<nb::object> kept(new nb::object(std::move(function)), [](nb::object* object) {
    const nb::gil_scoped_acquire gil;
    delete object;
  });
  Observer::set([kept](const Observation& at) {
    const nb::gil_scoped_acquire gil;
    try {
      (*kept)(at.device, at.program, at.run, at.task, at.done, at.arena, at.inputs, at.outputs);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the observer of tasks");
    }
  });
}

}  // namespace

void bind_activity(nb::module_& m) {
  m.def("publish", &Activity::publish, "path"_a, "Makes a file of counters and counts there from now on.");
  m.def("is_published", [] { return Activity::page() != nullptr; });
  m.def("count_host_call", &Activity::count_host_call, "Counts a call that the host runs.");
  m.def(
      "count_compile",
      [](const std::string& name, std::uint64_t nanoseconds) { Activity::count_compile(name, nanoseconds); },
      "name"_a, "nanoseconds"_a, "Counts a compile.");
  m.def("set_recording", &Recording::turn, "on"_a, "Time the tasks of all runs from now on, or no longer.");
  m.def("is_recording", &Recording::on);
  m.def("set_observer", &set_observer, "function"_a.none(),
        "Have a function called before and after every task of every run (device, program, run, task, done, "
        "addresses of the arena, the inputs and the outputs); None ends that.");
  m.def(
      "take_recording", &take_recording,
      "Programs (number, name, runs, nanoseconds, calls and nanoseconds of each task), spans (program, task, "
      "thread, start, end) and how many spans were dropped, since the last time this was asked.");
}

}  // namespace npu::python
