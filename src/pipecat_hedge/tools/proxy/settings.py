"""Reads ``hedge.toml``."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pipecat_hedge.policy import HedgePolicy
from pipecat_hedge.race import ConfigurationError, Tier

WireName: TypeAlias = Literal["anthropic", "openai"]
_UNKNOWN = "unknown"
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_CALL = re.compile(r"^(adaptive|race|after|fallback)\s*(\(.*\))?$", re.DOTALL)


def _policy(value: object) -> object:
    """A policy from its call, such as ``adaptive(0.1, max_attempts=3)``."""
    if not isinstance(value, str):
        return value
    found = _CALL.match(value.strip())
    try:
        call = ast.parse(f"f{found[2] or '()'}", mode="eval").body if found else None
        if found is None or not isinstance(call, ast.Call):
            raise ValueError
        args = [ast.literal_eval(arg) for arg in call.args]
        options = {o.arg: ast.literal_eval(o.value) for o in call.keywords if o.arg is not None}
    except (SyntaxError, ValueError):
        remedy = "write adaptive(0.1), race(2), after(0.8) or fallback()"
        raise ValueError(f"{value!r} is no policy: {remedy}") from None
    try:
        return getattr(HedgePolicy, found[1])(*args, **options)
    except TypeError as error:
        raise ValueError(str(error).replace("HedgePolicy.", "")) from None


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_known_fields(cls, given: Any) -> Any:
        names = [field.alias or name for name, field in cls.model_fields.items()]
        for name in given if isinstance(given, dict) else ():
            if name not in names:
                close = get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
                context = {"name": name, "hint": hint}
                raise PydanticCustomError(_UNKNOWN, "{name} is no setting: {hint}", context)
        return given


_Price: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class UpstreamSettings(_Settings):
    """A provider of a model.

    Parameters:
        name: Its name in reports; unique within the model.
        kind: ``api`` for an HTTP API of the model's wire; ``bedrock`` and ``vertex`` for Claude on
            Amazon's and Google's clouds, through the clients of the ``anthropic`` package.
        base_url: The API's address, as its SDK takes it (OpenAI's ends with ``/v1``).
        model: The model to ask for.
        key_env: The environment variable with the API key (of Bedrock: one of Bedrock's; of Vertex:
            an access token). None sends none; the clouds then use their own credentials.
        headers: Further headers, such as Azure's ``api-key``.
        region: The cloud's region, for ``bedrock`` and ``vertex``.
        project: The Google Cloud project, for ``vertex``.
        usd_per_mtok: US dollars per million input and output tokens.
        timeout_secs: The silence after which a request fails; None waits as long as the client.
        connect_secs: How long a connection may take.
    """

    name: str = Field(min_length=1)
    kind: Literal["api", "bedrock", "vertex"] = "api"
    base_url: str | None = None
    model: str = Field(min_length=1)
    key_env: str | None = None
    headers: dict[str, str] = {}
    region: str | None = None
    project: str | None = None
    usd_per_mtok: tuple[_Price, _Price] | None = None
    timeout_secs: float | None = Field(default=None, gt=0)
    connect_secs: float = Field(default=5.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_complete(self) -> UpstreamSettings:
        if self.kind == "api" and not _is_address(self.base_url or ""):
            raise ValueError(
                f"upstream {self.name!r}: base_url must be an http(s) address without a query, "
                "such as https://api.openai.com/v1"
            )
        key_env = self.key_env
        if not (key_env is None or key_env in os.environ or _VARIABLE.fullmatch(key_env)):
            raise ValueError(  # without quoting it
                f"upstream {self.name!r}: key_env must be the name of a variable that has the key, "
                "such as ANTHROPIC_API_KEY, and not the key itself"
            )
        if self.kind == "vertex" and self.project is None:
            raise ValueError(f"upstream {self.name!r}: project is missing, kind 'vertex' needs it")
        if self.kind != "api" and self.region is None:
            raise ValueError(f"upstream {self.name!r}: region is missing, such as 'eu-central-1'")
        return self

    @property
    def key(self) -> str | None:
        """The API key; None if no variable is named."""
        return None if self.key_env is None else os.environ[self.key_env]


class ModelSettings(_Settings):
    """A model of the proxy.

    Parameters:
        wire: The API that its clients speak, and all its upstreams.
        upstreams: The providers, in order.
        policy: How requests are raced.
        continues: Whether a text answer that is cut is continued by another upstream; ``continue``
            in the file.
        coalesce: Whether identical requests in flight under one key share one race.
        cache_secs: How long whole answers are served again; 0 is never.
        cache_tools: Whether requests with tools are cached as well.
    """

    wire: WireName
    upstreams: tuple[UpstreamSettings, ...] = Field(min_length=1)
    policy: Annotated[InstanceOf[HedgePolicy], BeforeValidator(_policy)] = HedgePolicy.adaptive(0.1)
    continues: bool = Field(default=False, alias="continue")
    coalesce: bool = False
    cache_secs: float = Field(default=0.0, ge=0)
    cache_tools: bool = False

    @model_validator(mode="after")
    def _fits(self) -> ModelSettings:
        names = [upstream.name for upstream in self.upstreams]
        if len(set(names)) < len(names):
            raise ValueError("upstreams: two have the same name")
        if self.wire == "openai" and any(u.kind != "api" for u in self.upstreams):
            raise ValueError("upstreams: bedrock and vertex speak the wire 'anthropic' only")
        return self


class KeySettings(_Settings):
    """A client's key.

    Parameters:
        name: The client's name in logs.
        sha256: The key's hash; ``pipecat-hedge proxy --new-key NAME`` prints both.
        tier: The client's priority where providers are short of room.
        models: The models that it may ask for; None is all.
        hedges_per_hour: The most hedges of an hour; None leaves that to the policy.
        hedge_usd_per_hour: The most to spend on hedges in an hour, in US dollars.
        max_streams: The most requests at a time.
    """

    name: str = Field(min_length=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    tier: Tier = "standard"
    models: frozenset[str] | None = None
    hedges_per_hour: float | None = Field(default=None, ge=0)
    hedge_usd_per_hour: float | None = Field(default=None, ge=0)
    max_streams: int = Field(default=100, ge=1)


class CacheSettings(_Settings):
    """Where whole answers are kept.

    Parameters:
        memory_mb: The size limit in memory, if neither a file nor a Redis is named.
        path: A file that keeps them between runs, instead of memory.
        disk_mb: The file's size limit.
        redis_url: A Redis that several proxies share, instead of the file.
    """

    memory_mb: float = Field(default=64.0, gt=0)
    path: Path | None = None
    disk_mb: float = Field(default=1024.0, gt=0)
    redis_url: str | None = None


class ProxySettings(_Settings):
    """The whole file.

    Parameters:
        listen: ``host:port``.
        models: The models by the names that clients ask for.
        keys: The clients' keys; empty requires none, on loopback only.
        cache: Where whole answers are kept.
        turn_log: A file to which a line per request is appended.
        drained_log: A file for the answers of losers, under a policy with ``losers="drain"``.
        max_body_mb: The largest request.
        leave_secs: How long after SIGTERM new connections are still taken while ``/health`` answers
            503, for load balancers that ask it.
        drain_secs: How long running streams may go on then.
    """

    listen: str = "127.0.0.1:8080"
    models: dict[str, ModelSettings] = Field(min_length=1)
    keys: tuple[KeySettings, ...] = ()
    cache: CacheSettings = CacheSettings()
    turn_log: Path | None = None
    drained_log: Path | None = None
    max_body_mb: float = Field(default=32.0, gt=0)
    leave_secs: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    drain_secs: float = Field(default=60.0, ge=0)

    @model_validator(mode="after")
    def _is_safe(self) -> ProxySettings:
        host, port = self.address
        if not 0 <= port <= 65535:
            raise ValueError(f"listen: {port} is no port")
        if host not in ("127.0.0.1", "::1", "localhost") and not self.keys:
            raise ValueError(
                f"listen: on {host} anyone could spend your providers' credit: add [[keys]] "
                "(pipecat-hedge proxy --new-key NAME), or listen on 127.0.0.1"
            )
        for key in self.keys:
            if unknown := (key.models or frozenset()) - self.models.keys():
                raise ValueError(f"key {key.name!r}: unknown model {min(unknown)!r}")
        for field in ("name", "sha256"):
            if len({getattr(key, field) for key in self.keys}) < len(self.keys):
                raise ValueError(f"keys: two have the same {field}")
        return self

    @property
    def missing_keys(self) -> list[str]:
        """The variables that upstreams name and that are not set; without them no proxy starts."""
        upstreams = [each for model in self.models.values() for each in model.upstreams]
        named = dict.fromkeys(each.key_env for each in upstreams if each.key_env is not None)
        return [name for name in named if not os.environ.get(name)]

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"listen must be host:port, got {self.listen!r}")
        return host.strip("[]"), int(port)


def _is_address(url: str) -> bool:
    """Whether paths can be added to an address, as to ``https://api.openai.com/v1``."""
    try:
        parts = urlsplit(url)
        is_valid = parts.port != 0  # which raises if it is no port
    except ValueError:
        return False
    is_plain = not (parts.query or parts.fragment or re.search(r"\s", url))
    return is_valid and is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)


def read_settings(path: Path) -> ProxySettings:
    """Read and check a settings file.

    Raises:
        ConfigurationError: If it cannot be read or used; the message names the field.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None
    try:
        return ProxySettings.model_validate(found)
    except ValidationError as error:
        # A mistyped name comes first: what it was to set may be reported as missing, too.
        problem = min(error.errors(), key=lambda each: each["type"] != _UNKNOWN)
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{path}: {_field(problem['loc'])}{message}") from None


def _field(where: Sequence[Any]) -> str:
    """A field's path, such as ``models.claude.upstreams[0].model: ``."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return f"{path.lstrip('.')}: " if path else ""
