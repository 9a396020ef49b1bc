"""Addition of any number of float32, whole repeats first, then the rest with a smaller mask; the older instructions."""

from te import tik


class VaddTail:
    def __init__(self, x, kernel_name):
        self.count = x["shape"][0]
        self.kernel_name = kernel_name
        self.tik_instance = tik.Tik(tik.Dprofile())
        self.x_gm = self.tik_instance.Tensor("float32", (self.count,), name="x_gm", scope=tik.scope_gm)
        self.y_gm = self.tik_instance.Tensor("float32", (self.count,), name="y_gm", scope=tik.scope_gm)
        self.z_gm = self.tik_instance.Tensor("float32", (self.count,), name="z_gm", scope=tik.scope_gm)

    def compute(self):
        blocks = (self.count + 7) // 8
        room = (self.count + 63) // 64 * 64
        x_ub = self.tik_instance.Tensor("float32", (room,), name="x_ub", scope=tik.scope_ubuf)
        y_ub = self.tik_instance.Tensor("float32", (room,), name="y_ub", scope=tik.scope_ubuf)
        self.tik_instance.data_move(x_ub, self.x_gm, 0, 1, blocks, 0, 0)
        self.tik_instance.data_move(y_ub, self.y_gm, 0, 1, blocks, 0, 0)
        repeats, rest = self.count // 64, self.count % 64
        if repeats:
            self.tik_instance.vadd(64, x_ub, x_ub, y_ub, repeats, 1, 1, 1, 8, 8, 8)
        if rest:
            start = repeats * 64
            self.tik_instance.vadd(rest, x_ub[start], x_ub[start], y_ub[start], 1, 1, 1, 1, 8, 8, 8)
        self.tik_instance.data_move(self.z_gm, x_ub, 0, 1, blocks, 0, 0)
        self.tik_instance.BuildCCE(
            kernel_name=self.kernel_name, inputs=[self.x_gm, self.y_gm], outputs=[self.z_gm]
        )
        return self.tik_instance


def vadd_tail(x, y, z, kernel_name="vadd_tail"):
    return VaddTail(x, kernel_name).compute()
