"""A compiler that fuses computes the program's values without probes; the graph with probes runs beside, unnoticed."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from compiled_models import MODELS, Selecting, assert_same, names, recorded, train_step
from debugger_traces import dump_of
from functorch.compile import make_boxed_func
from test_compiled_coverage import compiled_notes
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

FUSING = "aot_eager_decomp_partition"
"""Not known to run operators one by one, and compiles in no time."""
BESIDE = "without probes; the graph with probes ran beside, on the same values"
EQUAL = "bitwise equal: results of 2 runs, gradients of 2 runs"


class Planted:
    """A backend whose graphs with probes do what the test wants before they return, and which keeps what was made."""

    def __init__(self, with_probes=None):
        self.given, self.ran, self.made = [], [], []
        self._with_probes = with_probes or (lambda values: values)
        self._compile = aot_autograd(fw_compiler=self._compiled, bw_compiler=self._compiled)

    def _compiled(self, graph, inputs):
        probed = any("msprobe" in str(node.target) for node in graph.graph.nodes)
        self.given.append(probed)

        def run(*values):
            self.ran.append(probed)
            given = {one.untyped_storage()._cdata for one in values if isinstance(one, torch.Tensor)}
            results = graph(*values)
            results = self._with_probes(results) if probed else results
            made = [one.untyped_storage() for one in results if isinstance(one, torch.Tensor)]
            self.made += [StorageWeakRef(one) for one in made if one._cdata not in given]
            return results

        return make_boxed_func(run)

    def __call__(self, graph, inputs):
        return self._compile(graph, inputs)


def shifted(values):
    """What a graph with probes returns if they disturb it."""
    return [one + 1e-3 if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in values]


def equal_bits(left, right):
    return all(torch.equal(*pair) for pair in zip(left, right, strict=True))


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), torch.randn(3, 4)


class Summed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).square().sum()


def plain_then_recorded(debugger, model, action, self_check=False, **options):
    """What ``action(model, run)`` returns for a compiled copy without a debugger, then for one that is recorded."""
    found = []
    for recording in (False, True):
        one = Summed(copy.deepcopy(model))
        run = torch.compile(one, backend=FUSING, **options)
        tool = debugger(level="L1", self_check=self_check) if recording else None
        if tool is not None:
            tool.start(one)
        found.append(action(one, run))
    tool.stop()
    tool.step()
    return *found, tool


def unprobed_and_recorded(debugger, model, x, backend=FUSING, steps=3, **config):
    """What training steps compute without a debugger, and with one that checks itself; what it has found."""
    twin = copy.deepcopy(model)
    results, tool = [], None
    for one in (model, twin):
        torch.manual_seed(7)
        run = torch.compile(one, backend=backend() if isinstance(backend, type) else backend)
        if one is twin:
            tool = debugger(level="mix", self_check=True, **config)
        found = []
        for _ in range(steps):
            if one is twin:
                with tool.capture(one):
                    found += train_step(one, run, x)
            else:
                found += train_step(one, run, x)
        results.append([*found, *(buffer.clone() for buffer in one.buffers()), torch.get_rng_state()])
    return *results, tool


@pytest.mark.parametrize("name", ["operators", "in-place", "convolutions", "graph breaks"])
def test_values_and_random_numbers_are_those_without_probes(debugger, name):
    expected, found, tool = unprobed_and_recorded(debugger, *MODELS[name]())
    assert equal_bits(expected, found)
    assert {graph["computed"] for graph in compiled_notes(tool)["graphs"]} == {BESIDE}
    assert {graph["self_check"] for graph in compiled_notes(tool, 2)["graphs"]} == {EQUAL}
    assert "perturbed" not in compiled_notes(tool)


@pytest.mark.parametrize("name", ["operators", "in-place", "convolutions", "graph breaks"])
def test_records_are_those_of_the_eager_run(debugger, name):
    model, x = MODELS[name]()
    twin = copy.deepcopy(model)
    eager = recorded(debugger, model, model, x, level="mix")
    compiled = recorded(debugger, twin, torch.compile(twin, backend=FUSING), x, level="mix")
    assert names(compiled.data) == names(eager.data)
    assert set(compiled.data) == set(eager.data)  # parameters_grad, too
    for record, value in eager.data.items():
        assert_same(value, compiled.data[record], record)


def test_a_graph_that_probes_disturb_leaves_the_program_alone(debugger):
    model, x = small()
    model = Summed(model)
    twin = copy.deepcopy(model)
    expected = train_step(model, torch.compile(model, backend=Planted(shifted)), x)
    tool = debugger(level="L1", self_check=True)
    backend = Planted(shifted)
    run = torch.compile(twin, backend=backend)
    for _ in range(3):
        with tool.capture(twin):
            assert equal_bits(expected, train_step(twin, run, x))
    assert backend.ran == [False, True, False, True] * 3  # forward and backward graph, in turn
    (graph,) = compiled_notes(tool)["graphs"]
    assert graph["computed"] == BESIDE
    assert "results differ" in graph["self_check"]
    assert {"Functional.gelu.0.forward", "Functional.gelu.0.backward"} <= set(dump_of(tool, 2).data)


def test_graphs_are_compiled_once_in_each_form(debugger):
    model, x = small()
    model = Summed(model)
    backend = Planted()
    run = torch.compile(model, backend=backend)
    tool = debugger(level="mix")
    for _ in range(2):
        with tool.capture(model):
            train_step(model, run, x)
    assert sorted(backend.given) == [False, False, True, True]
    train_step(model, run, x)  # Dynamo's own entry
    compiled = len(backend.given)
    for _ in range(2):
        backend.ran.clear()
        train_step(model, run, x)
        assert backend.ran == [False, False]
        with tool.capture(model):
            train_step(model, run, x)
    assert len(backend.given) == compiled


def test_both_forms_draw_the_same_random_numbers_once(debugger):
    model = Summed(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)))
    expected, found, tool = unprobed_and_recorded(debugger, model, torch.randn(3, 4))
    assert equal_bits(expected, found)
    assert compiled_notes(tool, 2)["graphs"][0]["self_check"] == EQUAL


class Cached(nn.Module):
    """Writes to a buffer, to its input, which has a past, and reads both."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(5, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls.add_(1)
        x.mul_(self.calls + 1)
        self.cache[1:4] = x.detach()
        return self.second(x) * self.cache[2]


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.cached = nn.Linear(4, 4), Cached()

    def forward(self, x):
        h = self.before(x)
        return (self.cached(h) + h).sum()


def test_what_a_graph_writes_to_is_written_once(debugger):
    model = Writing()
    x = torch.randn(3, 4)
    twin = copy.deepcopy(model)
    model.cached.compile(backend=FUSING)
    twin.cached.compile(backend=FUSING)
    tool = debugger(level="mix", self_check=True)
    for step in range(3):
        expected = train_step(model, model, x)
        with tool.capture(twin):
            assert equal_bits(expected, train_step(twin, twin, x))
        assert equal_bits(model.buffers(), twin.buffers())
        assert int(twin.cached.calls) == step + 1
    assert compiled_notes(tool, 2)["graphs"][0]["self_check"] == EQUAL


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_are_results_and_forward_records(debugger, around):
    model, x = small()
    run = torch.compile(model, backend=Planted(shifted))
    with around():
        expected = run(x)
        tool = debugger(level="L1")
        with tool.capture(model):
            found = run(x)
    assert torch.equal(expected, found)
    assert "Functional.gelu.0.forward" in dump_of(tool).data


def test_dynamic_shapes_and_accumulated_gradients(debugger):
    model, _ = small()
    inputs = [torch.randn(size, 4) for size in (3, 5, 7)]

    def gradients(one, run):
        for x in inputs:
            run(x).backward()
        return [parameter.grad for parameter in one.parameters()]

    *results, tool = plain_then_recorded(debugger, model, gradients, self_check=True, dynamic=True)
    assert equal_bits(*results)
    found = dump_of(tool).data
    assert found["Functional.linear.4.forward"]["input_args"][0]["shape"] == [7, 4]
    assert "Functional.linear.4.backward" in found
    assert compiled_notes(tool)["graphs"][0]["runs"] == 3


def test_a_second_pass_over_a_graph_that_is_kept_has_its_own_records(debugger):
    model, x = small()

    def gradients(one, run):
        loss = run(x)
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return [parameter.grad for parameter in one.parameters()]

    *results, tool = plain_then_recorded(debugger, model, gradients)
    assert equal_bits(*results)
    assert {"Functional.gelu.0.backward", "Functional.gelu.0.backward#2"} <= set(dump_of(tool).data)


def test_differentiating_twice_is_refused_as_without_a_debugger(debugger):
    model, x = small()

    def refusal(one, run):
        (gradient, *_) = torch.autograd.grad(run(x), one.parameters(), create_graph=True)
        with pytest.raises(RuntimeError) as error:
            gradient.sum().backward()
        return str(error.value)

    plain, probed, tool = plain_then_recorded(debugger, model, refusal)
    assert plain == probed
    assert "Functional.gelu.0.backward" in dump_of(tool).data


class Seen(TorchDispatchMode):
    """Counts operators."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "msprobe" not in str(function)
        return function(*args, **(kwargs or {}))


class Packed(torch.autograd.graph.saved_tensors_hooks):
    """Counts tensors that are saved for a backward pass."""

    def __init__(self):
        super().__init__(self.pack, lambda one: one)
        self.count = 0

    def pack(self, one):
        self.count += 1
        return one


def test_hooks_and_modes_of_the_program_see_one_run(debugger):
    model, x = small()
    counts = []
    for recording in (False, True):
        one = Summed(copy.deepcopy(model))
        run = torch.compile(one, backend=FUSING)
        run(x)
        tool = debugger(level="mix") if recording else None
        if tool is not None:
            tool.start(one)
        packed, arrived = Packed(), []
        for parameter in one.parameters():
            parameter.register_hook(arrived.append)
            parameter.register_post_accumulate_grad_hook(arrived.append)
        run(x).backward()
        with Seen() as seen:
            run(x).backward()
        with packed:
            loss = run(x)
        loss.backward()
        counts.append((packed.count, len(arrived), seen.count))
        if tool is not None:
            tool.stop()
            tool.step()
    assert counts[0] == counts[1]


def test_memory_is_freed_when_the_backward_pass_is_over_or_never_comes(debugger, without_collector):
    model, x = small()
    model = Summed(model)
    backend = Planted()
    run = torch.compile(model, backend=backend)
    tool = debugger(level="L1")
    with tool.capture(model):
        loss = run(x)
        seen = weakref.ref(loss)
        assert sum(not made.expired() for made in backend.made) > 2
        loss.backward()
        model.zero_grad()
        alive = [made for made in backend.made if not made.expired()]
        assert len(alive) == 1  # the loss
        del loss
        assert seen() is None
        backend.made.clear()
        loss = run(x)
        del loss
        assert all(made.expired() for made in backend.made)


def test_an_error_of_the_program_comes_from_its_own_graph_alone(debugger):
    model = Selecting()
    backend = Planted()
    run = torch.compile(model, backend=backend)
    with debugger(level="mix").capture(model), pytest.raises(IndexError):
        run(torch.randn(2, 4), torch.tensor([9]))
    assert backend.ran == [False]


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_an_error_of_the_form_with_probes_costs_records_only(debugger, error):
    failures = [error("planted")]

    def failing(values):
        if failures:
            raise failures.pop()
        return values

    model, x = small()
    model = Summed(model)
    expected = train_step(model, torch.compile(model, backend=Planted()), x)
    run = torch.compile(model, backend=Planted(failing))
    tool = debugger(level="L1")
    for _ in range(2):
        with tool.capture(model):
            assert equal_bits(expected, train_step(model, run, x))
    coverage = dump_of(tool).coverage
    assert "call in a compiled graph that raised" in coverage["not_recorded"]
    if error is torch.OutOfMemoryError:
        assert "Functional.gelu.0.backward" in dump_of(tool, 1).data
        assert "not enough memory" in compiled_notes(tool, 1)["graphs"][0]["computed"]
        assert "compute other last bits" in compiled_notes(tool, 1)["perturbed"]
    else:
        assert compiled_notes(tool)["ran_without_probes"][0]["reason"] == "RuntimeError: planted"


def test_an_error_of_the_backward_form_with_probes_costs_records_only(debugger):
    runs = []

    def failing(values):
        runs.append(values)
        if len(runs) == 2:
            raise RuntimeError("planted")
        return values

    model, x = small()
    model = Summed(model)
    expected = train_step(model, torch.compile(model, backend=Planted()), x)
    run = torch.compile(model, backend=Planted(failing))
    tool = debugger(level="L1")
    with tool.capture(model):
        assert equal_bits(expected, train_step(model, run, x))
    assert "Functional.gelu.0.forward" in dump_of(tool).data
    assert any("beside the program" in reason for reason in dump_of(tool).coverage["not_recorded"])


def test_a_region_under_checkpointing_runs_beside(debugger):
    inner, x = small()

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = copy.deepcopy(inner)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False).sum()

    expected, found, tool = unprobed_and_recorded(debugger, Checkpointed(), x)
    assert equal_bits(expected, found)
    assert compiled_notes(tool, 2)["graphs"][0]["self_check"] == EQUAL
    assert "Functional.gelu.0.backward" in dump_of(tool).data


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_compiled_block_under_eager_checkpointing_runs_beside(debugger, reentrant):
    inner, x = small()
    results = []
    for recording in (False, True):
        one = copy.deepcopy(inner)
        run = torch.compile(one, backend=FUSING)
        leaf = x.clone().requires_grad_()
        tool = debugger(level="L1") if recording else None
        if tool is not None:
            tool.start(one)
        torch.utils.checkpoint.checkpoint(run, leaf, use_reentrant=reentrant).sum().backward()
        results.append([leaf.grad, *(parameter.grad for parameter in one.parameters())])
    tool.stop()
    tool.step()
    assert equal_bits(*results)
    assert "Functional.gelu.0.forward" in dump_of(tool).data


def test_a_graph_that_cannot_run_twice_runs_with_probes_and_says_so(debugger):
    calls = []

    @torch.library.custom_op("msprobe_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + 1

    counted.register_fake(torch.empty_like)
    tool = debugger(level="L1", self_check=True)
    run = torch.compile(lambda x: counted(x).exp(), backend=FUSING)
    with tool.capture():
        run(torch.randn(3))
    assert len(calls) == 1
    notes = compiled_notes(tool)
    (graph,) = notes["graphs"]
    assert graph["computed"].endswith("because it calls the operator msprobe_tests.counted.default")
    assert graph["self_check"].startswith("not checked: it calls the operator")
    assert "compute other last bits" in notes["perturbed"]
