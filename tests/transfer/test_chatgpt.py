"""ChatGPT's export: trees of messages become turns with branches."""

from typing import Any

import pytest

from turnkeep.errors import InvalidRequest
from turnkeep.transfer.chatgpt import BranchLimit, is_chatgpt_export, is_conversation_file, read_chatgpt_export
from turnkeep.transfer.transcripts import Transcript
from turnkeep_client.wire.blocks import Reasoning, Text, ToolResult, ToolUse

Json = dict[str, Any]


def message(role: str, text: str, **more: Any) -> Json:
    return {
        "author": {"role": role},
        "content": {"content_type": "text", "parts": [text]},
        "create_time": 1_700_000_000.5,
        "recipient": "all",
        "metadata": {"model_slug": "gpt-4o"} if role == "assistant" else {},
        **more,
    }


def conversation(*edges: tuple[str | None, str, Json | None], **more: Any) -> Json:
    """A tree of `(parent, id, message)`."""
    mapping: dict[str, Json] = {
        own: {"id": own, "parent": parent, "message": told, "children": []} for parent, own, told in edges
    }
    for parent, own, _ in edges:
        if parent is not None:
            mapping[parent]["children"].append(own)
    return {
        "title": "Weather",
        "create_time": 1_700_000_000.0,
        "mapping": mapping,
        "current_node": edges[-1][1],
        **more,
    }


ROOT = (None, "root", None)
HIDDEN = ("root", "hidden", message("system", ""))
TALK = (ROOT, HIDDEN, ("hidden", "q1", message("user", "Weather?")), ("q1", "a1", message("assistant", "Sunny.")))


def read(*edges: tuple[str | None, str, Json | None], **more: Any) -> Transcript:
    [transcript] = read_chatgpt_export([conversation(*edges, **more)])
    return transcript


def texts(transcript: Transcript) -> list[list[str]]:
    """The words of each turn."""
    turns: dict[str, list[str]] = {}
    for row in transcript.rows:
        words = " ".join(block.text for block in row.blocks if isinstance(block, Text))
        turns.setdefault(row.turn_id, []).append(words)
    return list(turns.values())


def followed(transcript: Transcript) -> list[int | None]:
    """For each turn the place of the turn that it follows."""
    assert transcript.parents is not None
    places = {turn_id: place for place, turn_id in enumerate(transcript.parents)}
    return [None if parent is None else places[parent] for parent in transcript.parents.values()]


class TestAnExport:
    def test_is_known_by_its_mapping(self) -> None:
        assert is_chatgpt_export([conversation(*TALK)])
        assert is_chatgpt_export(conversation(*TALK))
        assert not is_chatgpt_export([{"role": "user", "content": "x"}])
        assert not is_chatgpt_export([])

    @pytest.mark.parametrize("path", ["conversations.json", "export/conversations.json", "conversations-012.json"])
    def test_of_a_large_account_has_several_files(self, path: str) -> None:
        assert is_conversation_file(path)

    @pytest.mark.parametrize("path", ["shared_conversations.json", "conversations.json.bak", "chat.html"])
    def test_has_other_files_too(self, path: str) -> None:
        assert not is_conversation_file(path)

    def test_a_conversation_is_read_in_the_order_in_which_it_was_held(self) -> None:
        transcript = read(
            *TALK, ("a1", "q2", message("user", "Tomorrow?")), ("q2", "a2", message("assistant", "Rain."))
        )
        assert texts(transcript) == [["Weather?", "Sunny."], ["Tomorrow?", "Rain."]]
        assert followed(transcript) == [None, 0]
        assert (transcript.title, transcript.head) == ("Weather", transcript.rows[-1].turn_id)
        assert transcript.rows[0].created_at == 1_700_000_000_500
        assert transcript.rows[1].provider == "openai/gpt-4o"

    def test_what_was_left_out_is_counted(self) -> None:
        assert read(*TALK).remarks == ("Conversation 0 ('Weather'): 1 × empty message or note of ChatGPT, left out.",)

    def test_a_conversation_in_which_nothing_was_said_is_left_out(self) -> None:
        assert read_chatgpt_export([conversation(ROOT, HIDDEN)]) == []

    def test_all_conversations_are_read(self) -> None:
        assert len(read_chatgpt_export([conversation(*TALK), conversation(*TALK)])) == 2


class TestBranches:
    def test_an_edited_question_is_a_turn_beside_the_first(self) -> None:
        transcript = read(*TALK, ("hidden", "q2", message("user", "Rain?")), ("q2", "a2", message("assistant", "No.")))
        assert texts(transcript) == [["Weather?", "Sunny."], ["Rain?", "No."]]
        assert followed(transcript) == [None, None]
        assert transcript.head == transcript.rows[-1].turn_id

    def test_another_answer_is_a_turn_beside_the_first_with_the_same_question(self) -> None:
        transcript = read(
            *TALK,
            ("q1", "b1", message("assistant", "Cloudy.")),
            ("b1", "q2", message("user", "Really?")),
            ("q2", "a2", message("assistant", "Yes.")),
        )
        assert texts(transcript) == [["Weather?", "Sunny."], ["Weather?", "Cloudy."], ["Really?", "Yes."]]
        assert followed(transcript) == [None, None, 1]

    def test_the_branch_in_view_is_the_one_that_chatgpt_shows(self) -> None:
        edges = (*TALK, ("q1", "b1", message("assistant", "Cloudy.")))
        first = read(*edges, current_node="a1")
        assert first.head == first.rows[0].turn_id
        other = read(*edges, current_node="b1")
        assert other.head == other.rows[-1].turn_id
        inside = read(*edges, current_node="q1")
        assert inside.head == inside.rows[-1].turn_id

    def test_questions_after_the_same_answer_share_it(self) -> None:
        transcript = read(
            *TALK,
            ("a1", "q2", message("user", "Tomorrow?")),
            ("q2", "a2", message("assistant", "Rain.")),
            ("a1", "q3", message("user", "On Sunday?")),
        )
        assert texts(transcript) == [["Weather?", "Sunny."], ["Tomorrow?", "Rain."], ["On Sunday?"]]
        assert followed(transcript) == [None, 0, 0]

    def test_a_long_conversation_needs_no_recursion(self) -> None:
        edges: list[tuple[str | None, str, Json | None]] = [ROOT]
        for number in range(3_000):
            edges.append((edges[-1][1], f"n{number}", message("assistant" if number % 2 else "user", str(number))))
        assert len(texts(read(*edges))) == 1_500

    def test_branches_that_would_become_rows_without_end_are_refused(self) -> None:
        edges: list[tuple[str | None, str, Json | None]] = [ROOT, ("root", "q", message("user", "Go"))]
        for number in range(500):
            edges.append((edges[-1][1], f"a{number}", message("assistant", str(number))))
        edges += [(edges[-1][1], f"b{number}", message("assistant", str(number))) for number in range(500)]
        with pytest.raises(InvalidRequest, match="too many branches"):
            read(*edges)

    def test_a_long_question_with_many_answers_is_refused_before_it_is_repeated(self) -> None:
        answers = [("q", f"a{number}", message("assistant", "y")) for number in range(2_000)]
        with pytest.raises(InvalidRequest, match="too many branches"):
            read(ROOT, ("root", "q", message("user", "x" * 300_000)), *answers)

    def test_the_limit_counts_all_conversations_of_an_import(self) -> None:
        answers = [("q", f"a{number}", message("assistant", "y")) for number in range(5)]
        asked = conversation(ROOT, ("root", "q", message("user", "x" * 1_000_000)), *answers)
        assert read_chatgpt_export([asked])
        with pytest.raises(InvalidRequest, match=r"Conversation 1 \('Weather'\) has too many branches"):
            read_chatgpt_export([asked, asked])
        assert len(read_chatgpt_export([asked, asked], limit=BranchLimit(len(str([asked, asked]))))) == 2
        limit = BranchLimit()
        read_chatgpt_export([asked], limit=limit)
        with pytest.raises(InvalidRequest, match="too many branches"):
            read_chatgpt_export([asked], limit=limit)

    def test_a_message_in_two_places_is_refused(self) -> None:
        document = conversation(*TALK)
        document["mapping"]["a1"]["children"] = ["q1"]
        with pytest.raises(InvalidRequest, match="stands in two places"):
            read_chatgpt_export([document])


class TestWhatWasSaid:
    def test_calls_of_tools_and_their_results_are_kept(self) -> None:
        call = message("assistant", '{"query": "weather"}', recipient="browser.search")
        result = {
            "author": {"role": "tool", "name": "browser"},
            "content": {"content_type": "tether_quote", "text": "Sun"},
        }
        display = {"author": {"role": "tool"}, "content": {"content_type": "execution_output", "text": "More"}}
        transcript = read(
            ROOT,
            ("root", "q1", message("user", "Weather?")),
            ("q1", "c1", call),
            ("c1", "r1", result),
            ("r1", "r2", display),
            ("r2", "a1", message("assistant", "Sunny.")),
        )
        assert [(row.role, row.internal) for row in transcript.rows] == [
            ("user", False),
            ("assistant", True),
            ("user", True),
            ("assistant", False),
        ]
        [use] = transcript.rows[1].blocks
        assert isinstance(use, ToolUse)
        assert (use.name, use.input) == ("browser.search", {"query": "weather"})
        assert transcript.rows[2].blocks == (ToolResult(call_id=use.id, content="Sun\nMore"),)

    def test_thoughts_are_reasoning(self) -> None:
        thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "Look", "content": "I look up."}]}
        transcript = read(
            ROOT,
            ("root", "q1", message("user", "Weather?")),
            ("q1", "t1", message("assistant", "", content=thoughts)),
            ("t1", "a1", message("assistant", "Sunny.")),
        )
        assert transcript.rows[1].blocks == (Reasoning(text="I look up."),)

    def test_custom_instructions_are_system_messages_before_the_first_turn(self) -> None:
        context = {
            "content_type": "user_editable_context",
            "user_profile": "I am Ann.",
            "user_instructions": "Be brief.",
        }
        transcript = read(
            ROOT, ("root", "s", message("user", "", content=context)), ("s", "q1", message("user", "Weather?"))
        )
        assert [row.role for row in transcript.rows] == ["system", "user"]
        assert texts(transcript) == [["I am Ann.\n\nBe brief."], ["Weather?"]]

    def test_pictures_files_and_unknown_pieces_leave_a_line_and_a_remark(self) -> None:
        parts = [{"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}, "What is it?"]
        question = message("user", "", content={"content_type": "multimodal_text", "parts": parts})
        question["metadata"] = {"attachments": [{"name": "plan.pdf"}]}
        odd = message("assistant", "", content={"content_type": "hologram", "data": 1})
        transcript = read(ROOT, ("root", "q1", question), ("q1", "a1", odd))
        assert texts(transcript) == [
            ["[image_asset_pointer: left out] What is it? [plan.pdf: left out]", "[hologram: left out]"]
        ]
        assert [remark.split(": ")[1] for remark in transcript.remarks] == [
            "1 × file, left out; a line of text stands for it.",
            "1 × hologram, left out; a line of text stands for it.",
            "1 × image_asset_pointer, left out; a line of text stands for it.",
        ]

    def test_remarks_repeat_only_the_beginning_of_a_long_title(self) -> None:
        odd = [("q1", f"a{n}", message("assistant", "", content={"content_type": f"odd{n}"})) for n in range(3)]
        transcript = read(ROOT, ("root", "q1", message("user", "Hm?")), *odd, title="Long " * 1_000)
        assert len(transcript.remarks) == 3
        assert all(remark.startswith("Conversation 0 ('Long Long") for remark in transcript.remarks)
        assert all(len(remark) < 200 for remark in transcript.remarks)

    def test_what_a_tool_says_without_a_call_is_text(self) -> None:
        aside = message("tool", "By the way")
        transcript = read(
            ROOT,
            ("root", "q1", message("user", "Weather?")),
            ("q1", "t1", aside),
            ("t1", "c1", message("assistant", "{}", recipient="browser")),
            ("c1", "r1", message("tool", "Sun")),
            ("r1", "a1", message("assistant", "Sunny.")),
            ("a1", "t2", aside),
        )
        kinds = [type(row.blocks[-1]) for row in transcript.rows]
        assert kinds == [Text, Text, ToolUse, ToolResult, Text, Text]

    def test_what_was_spoken_aloud_is_kept_as_text(self) -> None:
        parts = [{"content_type": "audio_transcription", "text": "Hello there", "direction": "in"}]
        question = message("user", "", content={"content_type": "multimodal_text", "parts": parts})
        assert texts(read(ROOT, ("root", "q1", question))) == [["Hello there"]]

    @pytest.mark.parametrize(
        "broken,place",
        [
            ({"mapping": {"a": {"message": {"author": {}}}}}, r"\$\[0\].mapping"),
            ({"mapping": {"a": {"children": "b"}}}, "children"),
            ({"mapping": {"a": {"message": message("robot", "x")}}}, "'robot' is not a role"),
        ],
    )
    def test_what_is_no_export_is_refused_with_its_place(self, broken: Json, place: str) -> None:
        with pytest.raises(InvalidRequest, match=place):
            read_chatgpt_export([broken])

    def test_a_ring_that_no_root_leads_to_is_passed_over(self) -> None:
        tree = conversation((None, "q", message("user", "Hi")), ("q", "x", message("assistant", "Yes.")))
        tree["mapping"] |= {"a": {"parent": "b", "children": ["b"]}, "b": {"parent": "a", "children": ["a"]}}
        [transcript] = read_chatgpt_export([tree | {"current_node": "a"}])
        assert [row.role for row in transcript.rows] == ["user", "assistant"]
        assert transcript.head == transcript.rows[-1].turn_id
