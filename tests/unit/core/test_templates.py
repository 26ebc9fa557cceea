"""Templates: what may be kept, what a change does, and what a use inserts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import templates, validation
from fairlane.core.errors import InvalidRequest
from fairlane.core.retries import Backoff
from fairlane.core.secrets import SECRETS, mask_secrets
from fairlane.core.submissions import TaskRequest, submission
from fairlane.core.templates import Template, define, instantiate, update
from tests.unit.core.rows import NOW

GREETING = {"name": "Greeting", "instruction": "Greet {{who}}", "parameters": [{"name": "who"}]}


def made(**fields: Any) -> Template:
    document = {"name": "Trip", "instruction": "Go", **fields}
    return kept(document)


def kept(document: Any) -> Template:
    return Template(7, "tpl_1", define(document), 0, NOW, NOW)


def problem(**fields: Any) -> str:
    """What is said about a template that is not taken."""
    with pytest.raises(InvalidRequest) as error:
        made(**fields)
    return error.value.message.removeprefix("invalid template: ")


def used(template: Template, **params: Any) -> str:
    return instantiate(template, params).instruction or ""


def misused(template: Template, **params: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        instantiate(template, params)
    return error.value.message


def with_parameter(instruction: str = "<{{x}}>", **fields: Any) -> Template:
    return made(instruction=instruction, parameters=[{"name": "x", **fields}])


# -------------------------------------------------------------------- making


def test_a_template_has_what_it_was_given_and_sensible_defaults() -> None:
    template = kept(GREETING)
    definition = template.definition
    assert (template.id, template.seq, template.usage_count) == ("tpl_1", 7, 0)
    assert (template.created_at, template.updated_at) == (NOW, NOW)
    assert (definition.description, definition.priority) == ("", "normal")
    (who,) = definition.parameters
    assert (who.name, who.type, who.required, who.default) == ("who", "string", False, None)
    assert (definition.timeout_ms, definition.retry_policy, definition.llm_config) == (None,) * 3


def test_every_field_is_kept() -> None:
    parameter = {
        "name": "n",
        "type": "number",
        "required": True,
        "default": 3,
        "description": "how many",
    }
    definition = made(
        description="About",
        instruction="Buy {{n}}",
        priority=-5,
        parameters=[parameter],
        timeoutMs=5000,
        retryPolicy={"maxRetries": 2, "backoffMs": 10, "backoffMultiplier": 1.5},
        llmConfig={"provider": "openai", "apiKey": "k"},
        metadata={"team": "x"},
    ).definition
    assert (definition.description, definition.priority) == ("About", -5)
    assert definition.parameters == [templates.Parameter("n", "number", True, 3, "how many")]
    assert definition.timeout_ms == 5000
    assert definition.retry_policy == Backoff(max_retries=2, backoff_ms=10, backoff_multiplier=1.5)
    assert definition.llm_config == {"provider": "openai", "apiKey": "k"}
    assert definition.metadata == {"team": "x"}


def test_spaces_around_a_name_are_not_part_of_it() -> None:
    assert made(name="  Trip  ").definition.name == "Trip"


def test_null_is_as_good_as_absent() -> None:
    definition = made(
        priority=None,
        timeoutMs=None,
        parameters=[{"name": "x", "type": None, "default": None}],
        retryPolicy={"maxRetries": None},
    ).definition
    assert (definition.priority, definition.timeout_ms) == ("normal", None)
    assert definition.parameters == [templates.Parameter("x", "string", False)]
    assert definition.retry_policy == Backoff()


def test_timeout_is_another_word_for_the_timeout_in_milliseconds() -> None:
    assert made(timeout=5).definition.timeout_ms == 5
    assert made(timeout=5, timeoutMs=5).definition.timeout_ms == 5
    assert "give only one of them" in problem(timeout=5, timeoutMs=6)


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_only_an_object_is_a_template(document: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a JSON object"):
        define(document)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InvalidRequest) as error:
        define({"priority": "urgent", "nmae": 1})
    assert error.value.message == (
        "invalid template: unknown field 'nmae'; did you mean name?; "
        "missing required field 'name'; missing required field 'instruction'; "
        "field 'priority' must be a whole number or one of critical, high, low, normal"
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": None}, "missing required field 'name'"),
        ({"name": " "}, "field 'name' must not be blank"),
        ({"name": 3}, "field 'name' must be text"),
        ({"name": "x" * 201}, "field 'name' must not be longer than 200 characters"),
        ({"name": "a\nb"}, "field 'name' must be one line without control characters"),
        ({"instruction": "\n"}, "field 'instruction' must not be blank"),
        (
            {"instruction": "x" * 100_001},
            "field 'instruction' must not be longer than 100000 characters",
        ),
        ({"description": 3}, "field 'description' must be text"),
        (
            {"description": "x" * 10_001},
            "field 'description' must not be longer than 10000 characters",
        ),
        ({"timeoutMs": 0}, "field 'timeoutMs' must be from 1 to 600000"),
        ({"timeoutMs": 600_001}, "field 'timeoutMs' must be from 1 to 600000"),
        ({"timeoutMs": "5"}, "field 'timeoutMs' must be a whole number"),
        ({"timeoutMs": True}, "field 'timeoutMs' must be a whole number"),
        ({"retryPolicy": 3}, "field 'retryPolicy' must be an object"),
        (
            {"retryPolicy": {"maxRetries": -1}},
            "field 'retryPolicy.maxRetries' must be from 0 to 1000",
        ),
        (
            {"retryPolicy": {"maxRetry": 1}},
            "unknown field 'retryPolicy.maxRetry'; did you mean maxRetries?",
        ),
        (
            {"retryPolicy": {"backoffMultiplier": 0.5}},
            "field 'retryPolicy.backoffMultiplier' must be from 1 to 100",
        ),
        (
            {"retryPolicy": {"backoffMultiplier": "2"}},
            "field 'retryPolicy.backoffMultiplier' must be a number",
        ),
        ({"metadata": []}, "field 'metadata' must be an object"),
        ({"llmConfig": "gpt"}, "field 'llmConfig' must be an object"),
        ({"llmConfig": {"apiKey": 5}}, "field 'llmConfig.apiKey' must be text"),
        (
            {"llmConfig": {"apiKey": "***"}},
            "field 'llmConfig.apiKey' is masked, but no secret is stored: send the secret itself",
        ),
        ({"usageCount": 3}, "unknown field 'usageCount'"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], told: str) -> None:
    assert problem(**fields) == told


@pytest.mark.parametrize("priority", ["urgent", "", "Normal", 1.5, True, 1_000_001, [], {}])
def test_an_unknown_priority_is_refused(priority: Any) -> None:
    assert problem(priority=priority).startswith("field 'priority' must be ")


@pytest.mark.parametrize("priority", ["critical", "high", "normal", "low", 0, -20, 1_000_000])
def test_a_priority_is_a_word_or_a_number(priority: Any) -> None:
    assert made(priority=priority).definition.priority == priority


def test_a_priority_that_is_misspelled_gets_a_hint() -> None:
    assert problem(priority="hihg").endswith("; did you mean high?")


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({}, "field 'parameters' must be a list"),
        ([3], "field 'parameters[0]' must be an object"),
        ([{}], "missing required field 'parameters[0].name'"),
        (
            [{"name": "a b"}],
            (
                "field 'parameters[0].name' has invalid characters or is too long; "
                "it must match ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
            ),
        ),
        ([{"name": 3}], "field 'parameters[0].name' must be text"),
        (
            [{"name": "a", "type": "int"}],
            "field 'parameters[0].type' must be one of boolean, number, string",
        ),
        (
            [{"name": "a", "required": "yes"}],
            "field 'parameters[0].required' must be true or false",
        ),
        ([{"name": "a", "description": 3}], "field 'parameters[0].description' must be text"),
        (
            [{"name": "a", "requierd": True}],
            "unknown field 'parameters[0].requierd'; did you mean required?",
        ),
        (
            [{"name": "a"}, {"name": "b"}, {"name": "a"}],
            "field 'parameters[2].name' declares the parameter 'a' a second time",
        ),
        (
            [{"name": f"p{number}"} for number in range(101)],
            "field 'parameters' must not have more than 100 items",
        ),
    ],
)
def test_bad_parameters_are_refused(parameters: Any, told: str) -> None:
    assert problem(parameters=parameters) == told


@pytest.mark.parametrize(
    ("type_", "default", "kind"),
    [
        ("number", "3", "string"),
        ("number", True, "boolean"),
        ("number", float("nan"), "number"),
        ("boolean", "true", "string"),
        ("boolean", 1, "number"),
        ("string", 5, "number"),
        ("string", {}, "object"),
        ("string", [], "array"),
    ],
)
def test_a_default_of_another_type_is_refused(type_: str, default: Any, kind: str) -> None:
    parameters = [{"name": "a", "type": type_, "default": default}]
    told = f"field 'parameters[0].default' must be a {type_}, got: {kind}"
    assert problem(parameters=parameters) == told


@pytest.mark.parametrize(
    ("instruction", "placeholder", "hint"),
    [
        ("Go to {{cty}}", "{{cty}}", "; did you mean city?"),
        ("Go to {{ elsewhere }}", "{{elsewhere}}", "; add it to 'parameters'"),
        ("Go to {{}}", "{{}}", "; add it to 'parameters'"),
        ("{{a b}} {{city}} {{a b}}", "{{a b}}", "; add it to 'parameters'"),
    ],
)
def test_a_placeholder_that_nobody_declares_is_refused(
    instruction: str, placeholder: str, hint: str
) -> None:
    told = problem(instruction=instruction, parameters=[{"name": "city"}])
    where = f"field 'instruction' has the placeholder {placeholder} that no parameter declares"
    assert told == where + hint


def test_a_template_is_bounded_as_a_whole() -> None:
    told = "it must not be larger than 524288 bytes"
    assert problem(metadata={"x": "y" * 524_288}) == told


# -------------------------------------------------------------------- changing


def test_a_change_touches_only_what_it_names() -> None:
    before = made(description="Old", timeoutMs=5, metadata={"a": 1})
    after = update(before, {"description": "New", "timeout": None}, NOW + 5)
    assert (after.definition.description, after.definition.timeout_ms) == ("New", None)
    assert (after.definition.name, after.definition.metadata) == ("Trip", {"a": 1})
    assert (after.id, after.seq, after.created_at, after.updated_at) == ("tpl_1", 7, NOW, NOW + 5)


@pytest.mark.parametrize("document", [{}, {"name": "Trip"}, {"name": " Trip "}, {"metadata": None}])
def test_a_change_that_changes_nothing_leaves_the_moment_alone(document: dict[str, Any]) -> None:
    before = made()
    assert update(before, document, NOW + 5) == before


def test_what_was_read_may_be_sent_back() -> None:
    before = made()
    read_only = {"id": "x", "usageCount": 9, "createdAt": "x", "updatedAt": "x"}
    assert update(before, {**read_only, "priority": "high"}, NOW).usage_count == 0


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"name": None}, "missing required field 'name'"),
        ({"name": ""}, "field 'name' must not be blank"),
        ({"timeoutMS": 5}, "unknown field 'timeoutMS'; did you mean timeoutMs?"),
        ({"parameters": None}, "field 'instruction' has the placeholder {{who}}"),
    ],
)
def test_a_bad_change_is_refused(document: dict[str, Any], told: str) -> None:
    before = kept(GREETING)
    with pytest.raises(InvalidRequest) as error:
        update(before, document, NOW)
    assert error.value.message.startswith(f"invalid template: {told}")


def test_a_masked_secret_stands_for_the_one_that_is_kept() -> None:
    before = made(llmConfig={"model": "a", "apiKey": "key", "sessionToken": "t"})
    change = {"llmConfig": {"model": "***", "apiKey": "***", "sessionToken": "new"}}
    after = update(before, change, NOW)
    assert after.definition.llm_config == {"model": "***", "apiKey": "key", "sessionToken": "new"}


def test_a_masked_secret_needs_one_that_is_kept() -> None:
    for before in (made(), made(llmConfig={"model": "a"})):
        with pytest.raises(InvalidRequest, match="no secret is stored: send the secret"):
            update(before, {"llmConfig": {"apiKey": "***"}}, NOW)


def test_a_configuration_is_shown_without_its_secrets() -> None:
    config = dict.fromkeys(SECRETS, "secret") | {"model": "m", "region": "eu"}
    shown = dict.fromkeys(SECRETS, "***") | {"model": "m", "region": "eu"}
    assert mask_secrets(config) == shown


# -------------------------------------------------------------------- using


def test_a_use_is_the_body_of_a_task() -> None:
    template = made(
        instruction="Book {{ city }} for {{n}}: {{city}}!",
        priority="high",
        parameters=[{"name": "city", "required": True}, {"name": "n", "type": "number"}],
        timeoutMs=5000,
        retryPolicy={"maxRetries": 1},
        llmConfig={"apiKey": "key"},
        metadata={"team": "x", "templateId": "forged"},
    )
    assert msgspec.to_builtins(instantiate(template, {"city": "Rome", "n": 2})) == {
        "instruction": "Book Rome for 2: Rome!",
        "priority": "high",
        "timeoutMs": 5000,
        "retryPolicy": {"maxRetries": 1},
        "llmConfig": {"apiKey": "key"},
        "metadata": {"team": "x", "templateId": "tpl_1", "templateName": "Trip"},
    }


def test_the_least_a_use_can_be() -> None:
    assert msgspec.to_builtins(instantiate(made(), {})) == {
        "instruction": "Go",
        "priority": "normal",
        "metadata": {"templateId": "tpl_1", "templateName": "Trip"},
    }


@pytest.mark.parametrize("value", ["{{b}}", "$&", "$$", r"\1", r"\g<0>", "{{a}}", "{", "}}", ""])
def test_a_value_is_inserted_as_it_is(value: str) -> None:
    template = made(instruction="{{a}}|{{b}}|{{a}}", parameters=[{"name": "a"}, {"name": "b"}])
    assert used(template, a=value, b="B") == f"{value}|B|{value}"


def test_braces_around_a_placeholder_stay() -> None:
    assert used(with_parameter('{"at": {{{x}}}}'), x="1") == '{"at": {1}}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (5, "5"),
        (1.5, "1.5"),
        (True, "true"),
        (False, "false"),
        ("true", "true"),
        ("", ""),
        (10**30, "1" + "0" * 30),
    ],
)
def test_text_takes_whatever_has_one_spelling(value: Any, text: str) -> None:
    assert used(with_parameter(), x=value) == f"<{text}>"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-2, "-2"),
        (2.5, "2.5"),
        ("42", "42"),
        (" 42 ", "42"),
        ("+7", "7"),
        ("-0.5", "-0.5"),
        (".5", "0.5"),
        ("5.", "5.0"),
        ("1e3", "1000.0"),
        ("007", "7"),
    ],
)
def test_numbers_and_numeric_text_are_numbers(value: Any, text: str) -> None:
    assert used(with_parameter(type="number"), x=value) == f"<{text}>"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("", "string"),
        (" ", "string"),
        ("NaN", "string"),
        ("Infinity", "string"),
        ("1e999", "string"),
        ("0x10", "string"),
        ("1_000", "string"),
        ("٣", "string"),
        ("5 apples", "string"),
        ("9" * 101, "string"),
        (float("nan"), "number"),
        (float("inf"), "number"),
        (10**400, "number"),
        (True, "boolean"),
        ([], "array"),
        ({"a": 1}, "object"),
    ],
)
def test_what_is_not_a_number_is_refused(value: Any, kind: str) -> None:
    told = f"Parameter 'x' must be a number, got: {kind}"
    assert misused(with_parameter(type="number"), x=value) == told


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (False, "false"), ("true", "true"), ("false", "false")]
)
def test_a_boolean_is_true_or_false(value: Any, text: str) -> None:
    assert used(with_parameter(type="boolean"), x=value) == f"<{text}>"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("yes", "string"),
        ("", "string"),
        ("True", "string"),
        (1, "number"),
        (0, "number"),
        ([], "array"),
        ({}, "object"),
    ],
)
def test_what_is_not_a_boolean_is_refused(value: Any, kind: str) -> None:
    told = f"Parameter 'x' must be a boolean, got: {kind}"
    assert misused(with_parameter(type="boolean"), x=value) == told


@pytest.mark.parametrize(
    ("value", "kind"), [([], "array"), ({}, "object"), (float("nan"), "number")]
)
def test_what_has_no_spelling_is_no_text(value: Any, kind: str) -> None:
    assert misused(with_parameter(), x=value) == f"Parameter 'x' must be a string, got: {kind}"


def test_a_required_parameter_must_be_given() -> None:
    template = with_parameter(required=True)
    assert misused(template) == "missing required parameter: x"
    assert misused(template, x=None) == "missing required parameter: x"
    assert used(template, x="") == "<>"


@pytest.mark.parametrize("more", [{"required": True}, {"required": False}, {}])
def test_absent_and_null_take_the_default(more: dict[str, Any]) -> None:
    template = with_parameter(type="number", default=0, **more)
    assert used(template) == "<0>"
    assert used(template, x=None) == "<0>"
    assert used(template, x=3) == "<3>"


def test_false_is_a_default_like_any_other() -> None:
    assert used(with_parameter(type="boolean", default=False)) == "<false>"


def test_an_optional_parameter_without_default_is_inserted_as_nothing() -> None:
    assert used(with_parameter()) == "<>"
    assert used(with_parameter(type="number"), x=None) == "<>"


@pytest.mark.parametrize(
    ("parameters", "hint"),
    [
        (["city", "day"], "; did you mean city?"),
        (["day", "n"], "; known parameters: day, n"),
        ([], "; the template has no parameters"),
    ],
)
def test_a_parameter_that_is_not_declared_is_refused(parameters: list[str], hint: str) -> None:
    template = made(parameters=[{"name": name, "required": True} for name in parameters])
    assert misused(template, cty="Rome") == f"unknown parameter 'cty'{hint}"


def test_a_filled_in_instruction_is_bounded_before_it_is_made() -> None:
    template = made(instruction="{{x}}" * 20_000, parameters=[{"name": "x"}])
    assert len(used(template, x="12345")) == 100_000
    told = misused(template, x="x" * 1_000_000)
    assert told.startswith("the instruction must not be longer than 100000 characters when")


# -------------------------------------------------------------------- overrides


def overridden(template: Template, overrides: dict[str, Any]) -> TaskRequest:
    """The task of a use with overrides, which are checked as part of its request."""
    return instantiate(template, {}, validation.convert(overrides, TaskRequest))


def test_overrides_win_over_the_template() -> None:
    template = made(priority="high", timeoutMs=5)
    fields = {"priority": "low", "timeout": 9, "agentId": "ada", "lane": None}
    task = overridden(template, fields)
    assert (task.priority, task.agent, task.lane) == ("low", "ada", None)
    submission(task, task_id="tsk_1")
    assert (task.timeout_ms, task.timeout) == (9, None)


def test_objects_of_overrides_are_laid_over_the_template() -> None:
    template = made(
        llmConfig={"model": "a", "apiKey": "key"}, retryPolicy={"maxRetries": 2, "backoffMs": 5}
    )
    overrides = {
        "llmConfig": {"model": "b", "apiKey": "***"},
        "retryPolicy": {"maxRetries": 0},
        "metadata": {"n": 1, "templateName": "forged"},
    }
    task = overridden(template, overrides)
    assert task.llm_config == {"model": "b", "apiKey": "key"}
    assert task.retry_policy == Backoff(max_retries=0, backoff_ms=5)
    assert task.metadata == {"n": 1, "templateId": "tpl_1", "templateName": "Trip"}
    assert template.definition.llm_config == {"model": "a", "apiKey": "key"}


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"agentid": "a"}, "unknown field 'agentid'; did you mean agentId?"),
        ({"instruction": "x"}, "unknown field 'overrides.instruction'"),
        ({"metadata": 3}, "field 'metadata' must be an object"),
        (
            {"llmConfig": {"apiKey": "***"}},
            (
                "field 'overrides.llmConfig.apiKey' is masked, but no secret is stored: send the "
                "secret itself"
            ),
        ),
        (
            {"timeout": 1, "timeoutMs": 2},
            "'timeout' is an alias of 'timeoutMs': give only one of them",
        ),
    ],
)
def test_bad_overrides_are_refused(overrides: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        submission(overridden(made(), overrides), task_id="tsk_1")
    assert error.value.message == told


def test_a_template_gives_its_tasks_needs_and_a_use_replaces_them_by_resource() -> None:
    template = made(needs={"gpt": {"tokens": 3000}, "spend": {"usd": "0.12"}})
    assert instantiate(template, {}).needs == {"gpt": {"tokens": 3000}, "spend": {"usd": "0.12"}}
    found = overridden(template, {"needs": {"spend": {"usd": 1}, "gpu": {}}}).needs
    assert found == {"gpt": {"tokens": 3000}, "spend": {"usd": 1}, "gpu": {}}


def test_needs_of_a_template_must_be_amounts() -> None:
    assert "needs.gpt.tokens" in problem(needs={"gpt": {"tokens": -1}})
