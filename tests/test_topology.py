"""Topologies: names, link bandwidth, older TPUs."""

import importlib.util
import json

import pytest
from config_loading import PRETRAIN
from conftest import in_test_all, run_python

from bertjax.preflight.topology import TPUS, Topology
from data_pipelines.errors import InputError

TPU_NAMES = ["v5e", "v5e:", "v5e:4x", "v5e:0x4", "tpu:4x4", "v5e:4*4", "cpu:-1"]
GPU_NAMES = ["h200", "h200:", "h200:0", "h200:2x2x2", "h300:8", "a100:8"]


@pytest.mark.parametrize("name", [*TPU_NAMES, *GPU_NAMES])
def test_topology_rejects_unknown_names(name: str) -> None:
    examples = r"unknown\. Use one such as v5e:4x4, .* v3:4x4, .* h200:8, .* t4:8, h100:2x8"
    with pytest.raises(InputError, match=examples):
        Topology(name)


@pytest.mark.parametrize(
    ("name", "terabytes"), [("v3:32x32", 340), ("v4:16x16x16", 1100), ("v5e:16x16", 51.2)]
)
def test_topology_bandwidth_is_that_of_the_published_pod(name: str, terabytes: float) -> None:
    # Google's all-reduce bandwidth of a pod, in which every axis is a ring.
    pod = Topology(name)
    assert pod.chips * pod.bandwidth == pytest.approx(terabytes * 1e12, rel=0.12)


def test_topology_of_old_tpus_has_two_devices_a_chip() -> None:
    v2, v3 = TPUS["v2"], TPUS["v3"]
    assert v2.devices == v3.devices == 2
    assert v3.memory_bytes > 2 * v2.memory_bytes and v3.min_torus_size == 32
    assert Topology("v3:16x16").bandwidth == Topology("v3:32x32").bandwidth / 2


COMPILE = """
import sys
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry
from bertjax.config.loading import load_config
fields = {"model.vocab_size": "1024", "batch_size": "64"}
config = load_config(f"{sys.argv[1]}:model=1-128", fields, registry.data_fields())
print(preflight(config, Topology(sys.argv[2]), train_only=True).to_json())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU compiler: pip install 'bertjax[tpu]'",
)
@pytest.mark.parametrize(
    ("topology", "devices", "attention"),
    [
        ("v3:2x2", 8, "plain (TPU v3: the kernel is for "),
        *in_test_all(
            ("v2:2x2", 8, "plain (TPU v2: the kernel is for "),
            ("v4:2x2x1", 8, "tpu kernel"),
            ("v5p:2x2x1", 4, "tpu kernel"),
        ),
    ],
)
def test_preflight_compiles_for_older_tpus(topology: str, devices: int, attention: str) -> None:
    report = json.loads(run_python(COMPILE, PRETRAIN, topology))
    assert report["fits"] and (report["chips"], report["devices"]) == (4, devices)
    assert report["hbm_limit_bytes"] == Topology(topology).memory_bytes
    assert report["attention"].startswith(attention)
    assert 0 < report["train"]["estimated_mfu"] < 1
    assert report["train"]["estimated_collective_seconds"] > 0
