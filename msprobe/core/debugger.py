"""The part of ``PrecisionDebugger`` that does not depend on the framework: its life cycle, as users call it."""

from __future__ import annotations

import contextlib
import logging
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from typing_extensions import Self

from msprobe.core.adapter import Adapter
from msprobe.core.config_load import load_config
from msprobe.core.config_record import Config
from msprobe.core.config_reload import ConfigWatch
from msprobe.core.custom_apis import CustomApis
from msprobe.core.errors import LifecycleError
from msprobe.core.session import Session
from msprobe.core.support import Framework

_LOG = logging.getLogger("msprobe")
Batch = TypeVar("Batch")


class PerProcess(ABCMeta):
    """The first debugger of a process is the debugger of the process."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make the debugger, or return the one there is."""
        existing = cls.__dict__.get("_instance")
        if existing is not None:
            if (args, kwargs) != existing._arguments:
                _LOG.warning(
                    "msprobe: this process has a PrecisionDebugger already; its settings stay, the new ones are ignored"
                )
            return existing
        created = super().__call__(*args, **kwargs)
        created._arguments = (args, kwargs)
        cls._instance: Any = created
        return created


class Debugger(metaclass=PerProcess):
    """Record what flows through a model, step by step.

    A process has one debugger: a second call returns the first. The life-cycle methods also work on the class
    (``PrecisionDebugger.start()``), so that files far from the construction need no reference.

    Parameters
    ----------
    config_path : str or Path, optional
        A config.json; the packaged default otherwise.
    task, dump_path, level, step
        As in the config file; a value given here beats the file.

    Raises
    ------
    ConfigError
        Everything that is wrong with the configuration, in one message.
    """

    _instance: ClassVar[Any] = None
    _arguments: tuple[Any, Any] = ((), {})

    def __init__(
        self,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        step: Sequence[int | str] | None = None,
    ) -> None:
        framework = self._framework()
        keywords: dict[str, Any] = {"task": task, "dump_path": dump_path, "level": level, "step": step}
        config = load_config(config_path, framework=framework, **keywords)
        watch = None
        if config_path is not None and config.dump_enable is not None:
            watch = ConfigWatch(config_path, framework, keywords)
            config = watch.config
        self._session = Session(config, self._make_adapter(config), watch)
        self._custom = CustomApis(self._record_function)

    # -- what a framework provides

    def _framework(self) -> Framework:
        """Whom the configuration is for."""
        raise TypeError(f"{type(self).__name__}: make the PrecisionDebugger of msprobe.pytorch or msprobe.mindspore")

    def _make_adapter(self, config: Config) -> Adapter:
        """Adapter of the framework."""
        raise TypeError(f"{type(self).__name__}: make the PrecisionDebugger of msprobe.pytorch or msprobe.mindspore")

    def _record_function(self, prefix: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what records the calls of a function that the user registered."""
        raise LifecycleError(f"register_custom_api({name!r}): the calls of {prefix}.{name} cannot be recorded here")

    def _saver(self) -> Any:
        """What carries out :meth:`save` now; None when the level has no such thing."""
        return None

    def _while_compiling(self) -> bool:
        """Whether a compiler is tracing the caller: then nothing is saved."""
        return False

    # -- what users call

    @classmethod
    def _current(cls) -> Self:
        if cls._instance is None:
            raise LifecycleError("there is no PrecisionDebugger yet: call PrecisionDebugger(config_path=...) first")
        return cls._instance  # type: ignore[no-any-return]

    @classmethod
    def start(cls, model: Any = None, token_range: Sequence[int] | None = None, rank_id: int | None = None) -> None:
        """Begin to record.

        Parameters
        ----------
        model : module, cell, or sequence of them
            Needed for levels L0 and mix. The root itself is not recorded, what it holds is.
        token_range : [first, last], optional
            For text generation: record only these forward calls of ``model`` (of the first one in a sequence), and
            what follows each of them until the next. Call 0 reads the prompt; both ends are included, and counting
            starts at 0 in each step.
        rank_id : int, optional
            Rank of this process, where the one of the default process group is not wanted. It names the output folder
            and is what ``rank`` of the configuration selects.

        Raises
        ------
        LifecycleError
            If the level or ``token_range`` needs a model and none is given, if an argument is no valid value, or if
            there is no debugger.
        """
        cls._current()._session.start(model, rank_id, token_range)

    @classmethod
    def stop(cls) -> None:
        """Stop recording; the step goes on. Everything recorded is readable on disk."""
        cls._current()._session.stop()

    @classmethod
    def step(cls, *, discard: bool = False) -> None:
        """End the step: call indices start at 0 again, output goes to the next step's folder.

        Parameters
        ----------
        discard : bool
            The step does not count (warm-up): what it has written is deleted, and its number is used again.
        """
        cls._current()._session.step(discard=discard)

    @classmethod
    def set_init_step(cls, number: int) -> None:
        """Number the steps from ``number``, for a run that resumes a checkpoint. A step that is open ends.

        Raises
        ------
        LifecycleError
            If ``number`` is not an integer >= 0.
        """
        cls._current()._session.set_init_step(number)

    @classmethod
    @contextlib.contextmanager
    def capture(cls, model: Any = None) -> Iterator[Self]:
        """Record one training step: start on entry; stop and step on exit, also after an exception."""
        debugger = cls._current()
        debugger.start(model)
        try:
            yield debugger
        finally:
            debugger.stop()
            debugger.step()

    @classmethod
    def steps(cls, batches: Iterable[Batch], model: Any = None) -> Iterator[Batch]:
        """Record a training loop: each iteration is a step.

        Parameters
        ----------
        batches : iterable
            The data loader.
        model : module, cell, or sequence of them, optional
        """
        for batch in batches:
            with cls.capture(model):
                yield batch

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Write a value into the current step, and the gradients of its tensors when a backward pass computes them.

        Works at level "debug", where ``start()`` and ``stop()`` are not needed; ``step()`` ends the step. At another
        level it does nothing and says so once.

        Parameters
        ----------
        variable
            A tensor, number, text, or lists, tuples, dicts and dataclasses of them.
        name : str
            The n-th value of a name in a step is ``name.n.debug`` in debug.json, ``name_grad.n.debug`` its gradients.
        save_backward : bool
            Whether gradients are written.

        Raises
        ------
        LifecycleError
            If there is no debugger.
        """
        debugger = cls._current()
        if debugger._while_compiling():
            return
        session, saver = debugger._session, debugger._saver()
        if saver is None:
            level = session.config.level
            session.tell(f'save() writes values at level "debug" only; at level "{level}" it does nothing')
        elif not isinstance(name, str) or not name:
            session.tell(f"save(..., name={name!r}): the name must be a non-empty text; nothing is saved")
        elif session.open_for_save():
            saver.save(variable, name, save_backward=save_backward)

    @classmethod
    def register_custom_api(cls, module: Any, name: str, prefix: str | None = None) -> None:
        """Record calls of ``module.name`` as ``{prefix or module.__name__}.name`` (levels L1 and mix).

        The attribute is replaced by a recording wrapper until :meth:`restore_custom_api`. It may be a function, a
        method of any kind, or another callable, of a module, a class or a single object.

        Raises
        ------
        AttributeError
            If ``module`` has no attribute ``name``.
        LifecycleError
            If it is not callable.
        """
        cls._current()._custom.register(module, name, prefix)

    @classmethod
    def restore_custom_api(cls, module: Any, name: str) -> None:
        """Put back what :meth:`register_custom_api` replaced."""
        cls._current()._custom.restore(module, name)
