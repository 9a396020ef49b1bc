// Part of the plugin interface; everything is in op_plugin.h.
#pragma once

#include "op_plugin.h"
