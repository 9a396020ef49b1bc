// Part of the prototype interface; everything is in op_proto.h.
#pragma once

#include "op_proto.h"
