"""x limited to -1 .. 1, of any number of elements: loops over what fits, then the rest with a mask."""

from impl.util.platform_adapter import tbe_platform, tik


class ClipAnySize:
    """The parts of the program."""

    def __init__(self, x, kernel_name):
        self.count = x.get("shape")[0]
        self.kernel_name = kernel_name
        self.tik_instance = tik.Tik()
        assert self.tik_instance.d_profiling.get_aicore_num() >= 1
        self.room = tbe_platform.get_soc_spec(tbe_platform.UB_SIZE) // 8 // 4 // 64 * 64
        self.x = self.tik_instance.Tensor("float32", (self.count,), name="x", scope=tik.scope_gm)
        self.y = self.tik_instance.Tensor("float32", (self.count,), name="y", scope=tik.scope_gm)

    def piece(self, start, count):
        t = self.tik_instance
        ub = t.Tensor("float32", (self.room,), name="ub", scope=tik.scope_ubuf)
        t.data_move(ub, self.x[start], 0, 1, -(-count // 8), 0, 0)
        done = 0
        while count - done >= 64:
            repeats = min(255, (count - done) // 64)
            t.vec_mins(64, ub[done], ub[done], 1.0, repeats, 8, 8)
            t.vec_maxs(64, ub[done], ub[done], -1.0, repeats, 8, 8)
            done += repeats * 64
        if count > done:
            t.vec_mins(count - done, ub[done], ub[done], 1.0, 1, 8, 8)
            t.vec_maxs(count - done, ub[done], ub[done], -1.0, 1, 8, 8)
        t.data_move(self.y[start], ub, 0, 1, -(-count // 8), 0, 0)

    def compute(self):
        t = self.tik_instance
        loops = self.count // self.room
        with t.for_range(0, loops) as i:
            self.piece(i * self.room, self.room)
        if self.count % self.room:
            with t.new_stmt_scope():
                self.piece(loops * self.room, self.count % self.room)
        t.BuildCCE(
            kernel_name=self.kernel_name,
            inputs=[self.x],
            outputs=[self.y],
            config={"enable_const_fold": True},
        )
        return t


def clip_any_size(x, y, kernel_name="clip_any_size"):
    return ClipAnySize(x, kernel_name).compute()
