"""Put marks around API and module calls while Dynamo traces them.

Dynamo hands each call of an overridable function to the function mode on the stack, with the arguments as written, as
torch does in an eager run: what is seen here is what :class:`~msprobe.dispatch.api_mode.ApiMode` would have seen.
Instead of tracing through the mode, the call is traced between two marks. Module hooks are replaced by marks, too.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables import ConstantVariable

from msprobe.core.interruptions import pass_on_interruption
from msprobe.dispatch.api_mode import ApiMode
from msprobe.dispatch.call_site import Caller
from msprobe.dispatch.modules import MODULE_HOOKS
from msprobe.graph.call_sites import python_value, site_of, user_frame
from msprobe.graph.dynamo_hooks import inside_vmap
from msprobe.graph.graph_bodies import is_checkpoint, only_checkpoints_around
from msprobe.graph.graph_plan import REGISTRY, ModuleRef, TracedCall, TracedResult
from msprobe.graph.mutation import may_write
from msprobe.graph.traced_call import begin_call, end_call
from msprobe.graph.variables import VariableReader, realized

if TYPE_CHECKING:
    from msprobe.dispatch.api_table import Api

#: Keys of a node's ``meta``: it belongs to a call that is not recorded; number of the call whose result it is.
PASSED_OVER, CALL = "msprobe_passed_over", "msprobe_call"
_MODE = ApiMode.__torch_function__.__code__
_BEFORE, _AFTER = (hook.__call__.__code__ for hook in MODULE_HOOKS)


@dataclass(slots=True)
class TracedGraph:
    """What was seen while one graph was traced; a new attempt of Dynamo begins anew.

    Attributes
    ----------
    low_risk : int
        API calls below the risk class that is recorded.
    left_out : Counter
        Other calls without marks, by reason.
    open_modules : list of (module, number, proxy)
        Module calls that have begun.
    """

    low_risk: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    open_modules: list[tuple[torch.nn.Module, int, Any]] = field(default_factory=list)


class Tracing:
    """Handles what Dynamo is about to inline.

    Parameters
    ----------
    mode : ApiMode or None
        Whose calls get marks; None at level L0.
    """

    def __init__(self, mode: ApiMode | None) -> None:
        self._mode = mode
        self._output: Callable[[], Any] = lambda: None
        self._last = TracedGraph()

    def serve(self, mode: ApiMode | None) -> None:
        """Mark the calls that another mode sees."""
        self._mode = mode

    def graph_of(self, output: Any) -> TracedGraph:
        """What was seen of the graph that Dynamo's ``output`` collects."""
        if self._output() is not output:
            self._output, self._last = weakref.ref(output), TracedGraph()
        return self._last

    def last_graph(self) -> TracedGraph:
        """What was seen of a finished graph: Dynamo compiles a graph right after it has traced it."""
        return self._last

    def inline(self, original: Callable[..., Any], parent: Any, function: Any, args: Any, kwargs: Any, *more: Any,
               **options: Any) -> Any:  # fmt: skip
        """Stand in for ``InliningInstructionTranslator.inline_call``."""
        code = function.get_code() if hasattr(function, "get_code") else None
        if code is _MODE and self._mode is not None and getattr(realized(args[0]), "value", None) is self._mode:
            return self._api_call(parent, args[1], list(args[3].items), _keywords(args[4]))
        if code is not None and self._hands_over(parent, function, code):
            state = parent.symbolic_torch_function_state
            with state._pop_mode_for_inlining():
                call = _InlinedFunction(function, lambda *given: original(parent, function, *given, *more, **options))
                return self._api_call(parent, call, list(args), dict(kwargs))
        if code is _BEFORE and len(args) == 4:
            return self._module_begins(parent, args)
        if code is _AFTER and len(args) >= 4:
            return self._module_ends(parent, args)
        return original(parent, function, args, kwargs, *more, **options)

    # -- API calls

    def _hands_over(self, translator: Any, function: Any, code: CodeType) -> bool:
        """Whether torch would hand this function to the mode, and Dynamo does not: ``F.pad``."""
        if self._mode is None or code not in _python_functions():
            return False
        stack = translator.symbolic_torch_function_state.mode_stack
        return bool(stack) and getattr(realized(stack[-1]), "value", None) is self._mode

    def _api_call(self, translator: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        graph = self.graph_of(translator.output)
        if is_checkpoint(getattr(realized(function), "value", None)):
            inside = _InlinedFunction(function, lambda *given: realized(function)._call_function(translator, *given))
            return self._look_inside(translator, inside, args, kwargs)
        api = None
        try:
            api = self._name(translator, function, args, graph)
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            graph.left_out[f"failed in the tool: {type(error).__name__} (name of a traced call)"] += 1
        before = last_node(translator)
        if api is None:
            result = _call(translator, function, args, kwargs)
            for node in _nodes_since(translator, before):
                node.meta[PASSED_OVER] = True
            return result
        if api.transparent:
            return self._look_inside(translator, function, args, kwargs)
        begun = self._begin(translator, graph, api.base, None, args, kwargs)
        result = _call(translator, function, args, kwargs)
        if begun is not None:
            mutates = may_write(function_of(function), api, args, kwargs)
            self._end(translator, graph, begun, result, before, mutates=mutates)
        return result

    def _name(self, translator: Any, function: Any, args: list[Any], graph: TracedGraph) -> Api | None:
        assert self._mode is not None  # noqa: S101 - asked for calls of the mode only
        called = function_of(function)
        if isinstance(called, torch._ops.HigherOrderOperator):
            graph.left_out[f"calls inside the higher-order operator {called.__name__} of a compiled graph"] += 1
            return None
        frame: Any = user_frame(translator)
        caller = Caller(frame, False, False, False)
        found = self._mode.name(called, caller, lambda: [python_value(value) for value in args])
        if found is None or found.transparent:
            return found
        if found.risk < self._mode.lowest:
            graph.low_risk += 1
            return None
        return found

    def _look_inside(self, translator: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        state = translator.symbolic_torch_function_state
        state.push_torch_function_mode(state.cur_mode)
        try:
            return _call(translator, function, args, kwargs)
        finally:
            state.pop_torch_function_mode()

    # -- module calls

    def _module_begins(self, translator: Any, args: Any) -> Any:
        module = realized(args[1])
        kwargs = _keywords(realized(args[3]))
        graph = self.graph_of(translator.output)
        reference = ModuleRef(_expression(module), weakref.ref(module.value))
        begun = self._begin(translator, graph, "", reference, list(realized(args[2]).items), kwargs)
        if begun is not None:
            graph.open_modules.append((module.value, *begun))
        return ConstantVariable.create(None)

    def _module_ends(self, translator: Any, args: Any) -> Any:
        module = realized(args[1]).value
        graph = self.graph_of(translator.output)
        begun = None
        for at in range(len(graph.open_modules) - 1, -1, -1):
            if graph.open_modules[at][0] is module:
                begun = graph.open_modules[at][1:]
                del graph.open_modules[at:]
                break
        if begun is None:
            graph.left_out["module whose call is split by a graph break"] += 1
            return ConstantVariable.create(None)
        self._end(translator, graph, begun, args[-1], None, mutates=True)
        return ConstantVariable.create(None)

    # -- marks

    def _begin(  # noqa: PLR0913, PLR0917 - the parts of a call
        self, translator: Any, graph: TracedGraph, base: str, module: ModuleRef | None, args: Any, kwargs: Any
    ) -> tuple[int, Any] | None:
        """Put the mark of a beginning into the graph; None if this call cannot have one."""
        output = translator.output
        if not only_checkpoints_around(output.current_tracer):
            graph.left_out["call inside a higher-order operator of a compiled graph"] += 1
            return None
        if output.current_tracer.parent is not None:
            graph.left_out["calls that a checkpoint of a compiled graph may compute again"] += 1
        if inside_vmap():
            graph.left_out["call inside torch.vmap of a compiled graph"] += 1
            return None
        try:
            reader = VariableReader(output.side_effects)
            templates = reader.sequence(args), reader.mapping(kwargs)
            builder = reader.builder
            number = len(REGISTRY.calls)
            counts = len(builder.tensors), len(builder.numbers)
            REGISTRY.calls.append(TracedCall(number, base, module, *templates, *counts, site_of(translator)))
            leaves = (number, *builder.tensors, *builder.numbers)
            return number, output.create_proxy("call_function", begin_call, leaves, {})
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            graph.left_out[f"failed in the tool: {type(error).__name__} (traced call of {base or 'a module'})"] += 1
            return None

    def _end(  # noqa: PLR0913 - the parts of a call
        self, translator: Any, graph: TracedGraph, begun: tuple[int, Any], result: Any, before: Any, *, mutates: bool
    ) -> None:
        number, flight = begun
        of_api = REGISTRY.calls[number].module is None
        try:
            node = _result_node(translator, before) if of_api else None
            if node is not None:
                node.meta[CALL] = number  # Dynamo gives it another name yet
            reader = VariableReader(translator.output.side_effects)
            template = reader.read(result)
            builder = reader.builder
            REGISTRY.results[number] = TracedResult(template, "", mutates)
            leaves = (number, flight, len(builder.tensors), *builder.tensors, *builder.numbers)
            translator.output.create_proxy("call_function", end_call, leaves, {})
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            graph.left_out[f"failed in the tool: {type(error).__name__} (result of a traced call)"] += 1


class _InlinedFunction:
    """Stands for the tracker of a function that is traced into in another way."""

    def __init__(self, function: Any, inline: Callable[[list[Any], dict[str, Any]], Any]) -> None:
        self.value = function_of(function)
        self._inline = inline

    def call_function(self, _translator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Trace into the function."""
        return self._inline(args, kwargs)


@functools.cache
def _python_functions() -> frozenset[CodeType]:
    """Code of torch's functions that are written in Python and hand themselves to function modes."""
    found = torch.overrides.get_overridable_functions()
    functions = [*found[torch.nn.functional], *found[torch.functional]]
    return frozenset(function.__code__ for function in functions if hasattr(function, "__code__"))


def _call(translator: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Trace the call as Dynamo does without a function mode.

    A method of ``Tensor`` that is written in Python is one node then. Under a mode Dynamo traces into it, and cannot
    trace the ``super()`` in some of them.
    """
    called = function_of(function)
    method = getattr(called, "__name__", "")
    if isinstance(called, FunctionType) and not method.startswith("__") and vars(torch.Tensor).get(method) is called:
        owner = realized(args[0])
        if owner.is_tensor():
            return owner.call_method(translator, method, args[1:], kwargs)
    return function.call_function(translator, args, kwargs)


def function_of(variable: Any) -> Any:
    """The Python function behind a tracker of one."""
    variable = realized(variable)
    for name in ("value", "fn"):
        if hasattr(variable, name):
            return getattr(variable, name)
    return variable.as_python_constant()


def last_node(translator: Any) -> Any:
    """The node that was added to the graph last."""
    return next(iter(reversed(translator.output.graph.nodes)), None)


def _keywords(variable: Any) -> dict[str, Any]:
    return {key.vt.as_python_constant(): value for key, value in variable.items.items()}


def _expression(module: Any) -> CodeType | None:
    source = getattr(module, "source", None)
    if source is None:
        return None
    try:
        return compile(source.name, "<module of a graph>", "eval")
    except (SyntaxError, NotImplementedError):  # Dynamo has no expression for this source, or none that is Python
        return None


def _nodes_since(translator: Any, before: Any) -> Iterator[Any]:
    """Nodes of calls that were added after ``before``, last first."""
    for node in reversed(translator.output.graph.nodes):
        if node is before:
            return
        if node.op in ("call_function", "call_method", "call_module"):
            yield node


def _result_node(translator: Any, before: Any) -> Any:
    """The last node of a call, looking through the unpacking of its result."""
    for node in _nodes_since(translator, before):
        if node.target is not begin_call and node.target is not end_call:
            return _packed(node)
    return None


def _packed(node: Any) -> Any:
    """The node whose result ``node`` takes an item of, if that is no tensor."""
    if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        owner = node.args[0]
        if isinstance(owner, torch.fx.Node) and not isinstance(owner.meta.get("example_value"), torch.Tensor):
            return owner
    return node
