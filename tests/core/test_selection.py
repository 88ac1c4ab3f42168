"""Selection by list, scope, expansion: decided from names alone."""

from msprobe.core.names import CallName
from msprobe.core.selection import ALL, NOTHING, Choice, Selection


def api(base, index=0):
    return CallName(base, index)


def module(base, index=0):
    return CallName(base, index, module=True)


def run(selection, calls):
    chosen = []
    for call in calls:
        choice, _ = selection.enter(call)
        selection.leave(call)
        chosen.append(choice)
    return chosen


def test_no_list_and_no_scope_selects_everything():
    selection = Selection()
    assert selection.everything
    assert selection.enter(api("Torch.relu")) == (ALL, NOTHING)


def test_substring_selects_both_passes_and_a_full_name_only_its_own():
    by_part = Selection(["relu"])
    assert by_part.enter(api("Torch.relu"))[0] == ALL
    assert by_part.enter(api("Torch.tanh"))[0] == NOTHING
    by_name = Selection(["Torch.relu.3.backward"])
    assert by_name.enter(api("Torch.relu", 3))[0] == Choice(False, True)
    assert by_name.enter(api("Torch.relu", 30))[0] == NOTHING


def test_full_name_is_not_a_prefix_match():
    selection = Selection(["Module.a.Linear.forward.1"])
    assert selection.enter(module("Module.a.Linear", 1))[0].forward
    assert not selection.enter(module("Module.a.Linear", 10))[0].forward


def test_scope_is_inclusive_at_both_ends_with_backward():
    selection = Selection(scope=("Tensor.add.0.forward", "Functional.relu.0.forward"))
    calls = [api("Tensor.mul"), api("Tensor.add"), api("Tensor.mul", 1), api("Functional.relu"), api("Tensor.mul", 2)]
    assert run(selection, calls) == [NOTHING, ALL, ALL, ALL, NOTHING]


def test_scope_between_backward_names_opens_during_the_backward_pass():
    selection = Selection(scope=("Tensor.b.0.backward", "Tensor.a.0.backward"))
    (first, second, third) = run(selection, [api("Tensor.a"), api("Tensor.b"), api("Tensor.c")])
    assert first == second == third == NOTHING
    assert selection.may_record_backward(first)
    seen = []
    for name in ("Tensor.c.0.backward", "Tensor.b.0.backward", "Tensor.a.0.backward", "Tensor.z.0.backward"):
        seen.append(selection.enter_backward(name, NOTHING))
        selection.leave_backward(name)
    assert seen == [False, True, True, False]


def test_scope_closes_again_at_the_next_step():
    selection = Selection(scope=("Tensor.add.0.forward", "Tensor.never.0.forward"))
    run(selection, [api("Tensor.add")])
    selection.reset()
    assert run(selection, [api("Tensor.mul")]) == [NOTHING]


def test_a_listed_module_expands_to_what_runs_inside_it():
    selection = Selection(["Module.mlp.MLP.forward.0"], expand_modules=True)
    choice, expansion = selection.enter(module("Module.mlp.MLP"))
    assert choice == Choice(True, False)
    inner, inner_expansion = selection.enter(api("Functional.gelu"), expansion)
    assert inner == Choice(True, False)
    assert inner_expansion == NOTHING
    nested, nested_expansion = selection.enter(module("Module.mlp.fc.Linear"), expansion)
    assert nested == nested_expansion == Choice(True, False)


def test_list_and_scope_have_to_agree():
    selection = Selection(["relu"], scope=("Tensor.add.0.forward", "Tensor.add.1.forward"))
    calls = [api("Torch.relu"), api("Tensor.add"), api("Torch.relu", 1), api("Tensor.add", 1), api("Torch.relu", 2)]
    assert [choice.forward for choice in run(selection, calls)] == [False, False, True, False, False]


def test_tensor_list_ignores_case():
    selection = Selection(tensor_list=["ReLU"])
    assert selection.wants_tensors("Functional.relu.0.forward")
    assert not selection.wants_tensors("Functional.gelu.0.forward")
    assert not Selection().wants_tensors("Functional.relu.0.forward")


def test_at_level_l2_an_api_that_is_listed_selects_the_kernels_inside():
    selection = Selection(["Torch.mm.0.forward", "Aten.t.default.1.backward"], expand_apis=True)
    _, expansion = selection.enter(CallName("Torch.mm", 0))
    assert expansion == Choice(True, False)
    assert selection.enter(CallName("Aten.mm.default", 0), expansion)[0] == Choice(True, False)
    assert selection.enter(CallName("Aten.mm.default", 1))[0] == NOTHING
    assert selection.enter(CallName("Aten.t.default", 1))[0] == Choice(False, True)
    assert selection.names("Aten.t.default.1.backward")
    assert not selection.names("Aten.mm.default.0.forward")
