"""max(x, 0) with the names and the build of the oldest files."""

from te.tvm.target import cce as target

import te.lang.cce
from tbe.tvm.topi import generic
from tbe.tvm.topi.cce import util
from te import platform as cce
from te import tvm
from te.platform.cce_build import build_config


@util.check_input_type(dict, dict, str)
def old_relu(x, y, kernel_name="old_relu"):
    """Build old_relu for the given descriptions."""
    shape = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape)
    assert cce.get_soc_spec("CORE_NUM") > 0 and util.get_product_version() != util.VERSION_MINI
    data = tvm.placeholder(shape, name="data", dtype=x.get("dtype").lower())
    with target():
        res = te.lang.cce.vrelu(data)
        sch = generic.auto_schedule(res)
    with build_config:
        tvm.build(sch, [data, res], "cce", name=kernel_name)
