# find_package(tf_adapter CONFIG) makes the target tf_adapter::npu: the headers npu/npu.h, npu/npu.hpp and acl/acl.h, and
# libnpu.so. This folder is what `python -m npu_runtime --cmake-dir` prints.
get_filename_component(_tf_adapter_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET tf_adapter::npu)
  add_library(tf_adapter::npu SHARED IMPORTED)
  set_target_properties(tf_adapter::npu PROPERTIES
    IMPORTED_LOCATION "${_tf_adapter_root}/libnpu.so"
    IMPORTED_LINK_DEPENDENT_LIBRARIES "${_tf_adapter_root}/libnpu_dnnl.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tf_adapter_root}/include")
endif()
unset(_tf_adapter_root)
