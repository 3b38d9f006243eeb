"""Settings: what is invalid, and the field and remedy that the message names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.proxy.settings import ProxySettings, read_settings
from tests.tools.conftest import Ran

SMALL = """
[models.claude]
wire = "anthropic"
policy = "adaptive(0.2, max_attempts=3)"
upstreams = [
  { name = "direct", base_url = "https://api.anthropic.com", model = "claude-haiku-4-5" },
  { name = "bedrock", kind = "bedrock", model = "claude", region = "eu-central-1" },
]
"""
KEY = '\n[[keys]]\nname = "bot"\nsha256 = "' + "0" * 64 + '"\n'


def read(tmp_path: Path, text: str) -> ProxySettings:
    path = tmp_path / "hedge.toml"
    path.write_text(text)
    return read_settings(path)


def test_small_file_has_defaults(tmp_path: Path) -> None:
    path = tmp_path / "hedge.toml"
    path.write_text(SMALL)
    settings = read_settings(path)
    assert settings.address == ("127.0.0.1", 8080)
    model = settings.models["claude"]
    assert model.policy == HedgePolicy.adaptive(0.2, max_attempts=3)
    assert (model.coalesce, model.cache_secs, model.continues) == (False, 0.0, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "models: Field required"),
        ("x", "Expected '='"),
        (SMALL.replace("adaptive(0.2, max_attempts=3)", "quick"), "models.claude.policy: 'quick'"),
        (SMALL.replace("adaptive(0.2", "adaptive(open('x')"), "is no policy: write adaptive"),
        (SMALL.replace("adaptive(0.2, max", "adaptive(-1, max"), "budget must be a share"),
        (SMALL.replace('anthropic"\np', 'openai"\np'), "bedrock and vertex speak the wire"),
        (SMALL.replace("https://", ""), "upstream 'direct': base_url must be an http"),
        (SMALL.replace('bedrock", k', 'direct", k'), "two have the same name"),
        (SMALL.replace(', region = "eu-central-1"', ""), "region is missing"),
        (SMALL.replace('haiku-4-5"', 'haiku-4-5", key_env = "sk-1"'), "and not the key itself"),
        (SMALL.replace('haiku-4-5"', 'haiku-4-5", key_env = "gsk1"'), "and not the key itself"),
        (SMALL.replace("upstreams", "upstream"), "upstream is no setting: did you mean upstreams?"),
        (SMALL.replace("policy", "polcy"), "models.claude: polcy is no setting: did you mean pol"),
        (SMALL + '"{x}" = 1', "{x} is no setting: there are wire, upstreams, policy, continue, "),
        ('listen = "0.0.0.0:80"\n' + SMALL, "anyone could spend"),
        ('listen = "80"\n' + SMALL + KEY, "listen must be host:port"),
        (SMALL + KEY + KEY, "keys: two have the same name"),
        (SMALL + KEY + KEY.replace("bot", "b"), "keys: two have the same sha256"),
        *(
            (SMALL.replace("https://api.anthropic.com", url), "base_url must be an http(s) address")
            for url in ("http://", "http://h:99999", "http://h:x", "http://a b", "https://h/?v=1")
        ),
        (SMALL.replace('5" }', '5", usd_per_mtok = [-1, 5] }'), "[0].usd_per_mtok[0]"),
        (SMALL.replace('5" }', '5", connect_secs = inf }'), "[0].connect_secs"),
        (SMALL + KEY + 'models = ["gpt"]', "key 'bot': unknown model 'gpt'"),
        (SMALL + KEY.replace("0" * 64, "secret"), "keys[0].sha256"),
    ],
)
def test_invalid_settings_name_their_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as rejected:
        read(tmp_path, text)
    assert message in str(rejected.value)
    assert "sk-1" not in str(rejected.value)
    assert "gsk1" not in str(rejected.value)


KEYLESS = SMALL.replace('haiku-4-5"', 'haiku-4-5", key_env = "NO_SUCH"')


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("region =", "regoin =", "[1]: regoin is no setting: did you mean region"),
        ("adaptive(", "adaptve(", "models.claude.policy: 'adaptve("),
    ],
)
def test_a_mistake_is_found_without_the_keys(
    tmp_path: Path, right: str, wrong: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        read(tmp_path, KEYLESS.replace(right, wrong))


def test_keys_are_named_by_a_check_and_needed_by_the_proxy(
    tmp_path: Path, ran: Callable[..., Ran]
) -> None:
    path = tmp_path / "hedge.toml"
    lines = KEYLESS.splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "bedrock" not in line))
    assert ran("proxy", path, "--check") == (0, f"{path} can be used; not set here: NO_SUCH\n", "")
    error = "pipecat-hedge proxy: not set: NO_SUCH; export it\n"
    assert ran("proxy", path) == (2, "", error)


@pytest.mark.parametrize("options", [["--check"], []])
def test_a_clouds_missing_package_is_one_line_with_the_remedy(
    tmp_path: Path, ran: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    path = tmp_path / "hedge.toml"
    path.write_text(SMALL)
    where = f"{path}: models.claude.upstreams[1]: upstream 'bedrock'"
    line = f'{where} needs botocore: pip install "anthropic[bedrock]"'
    assert ran("proxy", path, *options) == (2, "", f"pipecat-hedge proxy: {line}\n")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Windows' editors write one."""
    assert read(tmp_path, "\ufeff" + SMALL).models.keys() == {"claude"}


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"hedge\.toml: No such file"):
        read_settings(tmp_path / "hedge.toml")
