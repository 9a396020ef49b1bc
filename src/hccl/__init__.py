"""Collectives of several processes over an existing transport: MPI, through `mpi4py`.

One process needs no transport at all: every collective is then the identity. Names follow what scripts ported
to NPUs import: `hccl.manage.api`, `hccl.split.api`.
"""
