"""Compilation of step functions, with the compiler options of each kind of device."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from bertjax.mesh.memory import program_bytes
from bertjax.mesh.watchdog import note_progress
from data_pipelines.errors import InputError


def compiler_options(device: jax.Device, *, sdc_checker: bool = False) -> dict[str, str | bool]:
    """Return XLA's compiler options for a device; empty for CPUs and GPUs.

    Args:
      device: one of the devices.
      sdc_checker: whether a TPU checks itself for silent data corruption.

    Raises:
      InputError: another device than a TPU cannot.
    """
    options: dict[str, str | bool] = {}
    if sdc_checker and device.platform != "tpu":
        raise InputError(
            f"sdc_checker=True: the devices are {device.platform}s, and the checker is that of the "
            "TPU compiler. Use replay_every."
        )
    if sdc_checker:
        options["xla_tpu_enable_sdc_checker"] = True
    if device.platform == "tpu":
        # By default XLA turns a matrix product and the sum of its result over devices into a
        # windowed einsum (collective matmul): slices of the product, each passed on in a ring. For
        # gradients that has half the speed of the whole product, and copies its inputs to another
        # layout.
        options["xla_jf_spmd_threshold_for_windowed_einsum_mib"] = "1000000"
        # By default XLA combines the sums of all gradients into one at the end, when no computation
        # is left to overlap with. Smaller groups are summed while the backward pass continues.
        options["xla_jf_crs_combiner_threshold_in_bytes"] = "2000000"
        options["xla_enable_async_all_reduce"] = True
        # On TPU7x such a fusion exceeds VMEM at 512 tokens, on v2 and v3 always (libtpu 0.0.42).
        if not device.device_kind.startswith(("TPU7", "TPU v2", "TPU v3")):
            options["xla_tpu_enable_async_collective_fusion_fuse_all_reduce"] = True
    if device.device_kind.startswith(("TPU v5", "TPU v6")):
        # By default a fusion may use 16 MiB of VMEM, all that older chips have. That is too little
        # for the backward pass: its inputs would be read several times.
        options["xla_tpu_scoped_vmem_limit_kib"] = "32768"
    return options


class Compiler:
    """A compiler of functions for the devices of a mesh.

    Args:
      mesh: the devices.
      sdc_checker: see `compiler_options`.

    Attributes:
      memory_bytes: bytes per device of each compiled function, by the function's name.
    """

    def __init__(self, mesh: Mesh, *, sdc_checker: bool = False) -> None:
        self._mesh = mesh
        self._options = compiler_options(mesh.devices.flat[0], sdc_checker=sdc_checker)
        self.memory_bytes: dict[str, int] = {}

    def compile(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        out_shardings: Any,
        donate: bool = False,
    ) -> jax.stages.Compiled:
        """Compile a function ahead of time.

        Args:
          function: pure function of trees of arrays.
          *arguments: trees of `jax.ShapeDtypeStruct` with shardings, one for each parameter.
          out_shardings: as for `jax.jit`.
          donate: whether the buffers of the first argument are donated.
        """
        jitted = jax.jit(
            function,
            in_shardings=tuple(map(shardings_of, arguments)),
            out_shardings=out_shardings,
            donate_argnums=0 if donate else (),
        )
        with jax.set_mesh(self._mesh):
            lowered = jitted.lower(*arguments)
        compiled = lowered.compile(compiler_options=self._options)
        note_progress()
        self.memory_bytes[function.__name__] = program_bytes(compiled)
        return compiled


def shardings_of(shapes: Any) -> Any:
    """Return the sharding of each leaf of a tree of `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)
