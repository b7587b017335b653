"""Commands that answer an unknown option in one sentence, and know the options of other libraries."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from outplay.errors import ConfigError

_ALIASES = {"--algo": "--run", "--algorithm": "--run", "--total-timesteps": "--timesteps"}
_SHORT = {"n": "n_timesteps"}  # one-letter options of other libraries


class _Options:
    """Takes some other names of a command's options. Unknown options are a ConfigError."""

    params: list[Any]

    @property
    def _options(self) -> set[str]:
        return {name for param in self.params for name in getattr(param, "opts", ())}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        try:
            return super().parse_args(  # type: ignore[misc,no-any-return]
                ctx, [*map(self._without_alias, args[:end]), *args[end:]]
            )
        except Exception as error:
            option, near = getattr(error, "option_name", None), getattr(error, "possibilities", ())
            if option is None or near == ():  # it is not NoSuchOption, which typer does not export
                raise
            raise ConfigError(f"no option {option}{self._hint(ctx, option, near or [])}") from error

    def _without_alias(self, argument: str) -> str:
        name, sign, value = argument.partition("=")
        return _ALIASES[name] + sign + value if _ALIASES.get(name) in self._options else argument

    def _hint(self, ctx: Any, option: str, near: list[str]) -> str:
        options, name = self._options, option.lstrip("-").replace("-", "_")
        if (spelled := "--" + name.replace("_", "-")) in options:
            return f"; write {spelled}"
        if "--config" in options and "--set" in options:  # the command takes settings
            from outplay.runs.reference import option_for

            if found := option_for(_SHORT.get(name, name), options):
                return f"; {found}"
        if near:
            return f". Did you mean {sorted(near)[0]}?"
        return f"; `{_command_line(ctx)} --help` lists all"


def _command_line(ctx: Any) -> str:
    """What a user types to run a command: `outplay tune report`, also if the program has another name."""
    names = []
    while ctx.parent is not None:
        names.append(ctx.info_name)
        ctx = ctx.parent
    return " ".join(["outplay", *reversed(names)])


class Command(_Options, TyperCommand):
    """A command."""


class Group(_Options, TyperGroup):
    """A command that has options of its own, and further commands."""
