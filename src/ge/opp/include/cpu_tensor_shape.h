// Part of the kernel interface; everything is in cpu_kernel.h.
#pragma once

#include "cpu_kernel.h"
