"""qkv chat and qkv generate: several turns, a context that ends somewhere, and what is said when it does."""

import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import qkv
from qkv.batch import Batch
from qkv.commands.chat import turn
from qkv.config import ModelConfig
from qkv.engine.pack import pack
from qkv.errors import QkvError
from qkv.generate.continuous_batching import ContinuousBatch
from qkv.generate.conversation import Conversation
from qkv.generate.logits_processor import LogitsProcessor
from qkv.generate.prefill import common_prefix
from qkv.generate.prefix_cache import PrefixCache, slide
from qkv.generate.sampling import SamplingParams
from qkv.generate.search import greedy
from qkv.generate.sequence import Sampler
from qkv.models.build import build
from qkv.text.chat import render
from qkv.text.train import train_tokenizer

TEMPLATE = "{% for m in messages %}<s>{{ m['role'][0] }}:{{ m['content'] }}</s>{% endfor %}<s>a:"
TEXTS = ["the cat sat on the mat", "hello there", "a:u:s: what is it?"] * 3


def tokenizer_of(template=TEMPLATE):
    tokenizer = train_tokenizer(TEXTS, "bytes", 300)
    if template:
        tokenizer.settings["chat_template"] = template
    return tokenizer


def config_of(**fields):
    sizes = {"vocab_size": 260, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_length": 96, "init_std": 0.5,
             "dropout": 0.0, "bos_id": 1, "eos_id": 2, "norm_order": "pre", "position": "rotary"}  # fmt: skip
    return ModelConfig(family="decoder", **{**sizes, **fields})


def model_of(template=TEMPLATE, **fields):
    torch.manual_seed(0)
    c = config_of(**fields)
    return qkv.Model(c, build(c), tokenizer_of(template), "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("chat") / "model"
    model_of().save(place)
    return place


# --- a text that is read on


@pytest.mark.parametrize("fields", [{}, {"position": "learned"}, {"position": "t5"}, {"mixer": ("linear",), "position": "learned"},
                                    {"recurrent": "lstm", "position": "none"}])  # fmt: skip
def test_a_prefix_cache_answers_as_a_fresh_reading_does(fields):
    torch.manual_seed(0)
    network = build(config_of(**fields)).eval()
    for fast in (network, pack(network)):
        cache = PrefixCache(fast)
        for ids in [[5], [5, 6, 7], [5, 6, 7, 8], [5, 6, 9, 9, 9], [5, 6, 9], [5, 6, 9], [8], [8, 5, 6]]:
            batch = Batch(inputs=torch.tensor([ids]))
            with torch.no_grad():
                fresh = network(batch).logits[0, -1].log_softmax(-1)
            sampler = Sampler(7, (), top=260)
            assert list(cache.generate(ids, sampler)) == greedy(network, batch, 7)[0]
            assert dict(sampler.tokens[0].top) == pytest.approx(dict(enumerate(fresh.tolist())), abs=1e-5)


def test_a_prefix_cache_reads_only_what_is_new():
    network, read = build(config_of()).eval(), []
    network.embed.register_forward_hook(lambda module, inputs, output: read.append(inputs[0].size(1)))
    cache = PrefixCache(network)
    for ids in ([5, 6, 7, 8], [5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 1, 2], [5, 6, 3, 3]):
        list(cache.generate(ids, Sampler(1, ())))
    assert read == [4, 1, 2, 2]
    read.clear()
    (*answer, last) = cache.generate(
        [5, 6, 3, 3], Sampler(5, ())
    )  # every token of an answer is read once, the last never
    list(cache.generate([5, 6, 3, 3, *answer, last, 7, 7], Sampler(1, ())))
    assert read == [1, 1, 1, 1, 1, 3]


def test_common_beginnings():
    assert (
        common_prefix([1, 2, 3], [1, 2, 4]) == 2
        and common_prefix([1, 2], [1, 2, 3]) == 2
        and common_prefix([], [1]) == 0
    )


def test_sliding_is_plain_writing_within_the_context_and_goes_on_behind_it():
    torch.manual_seed(0)
    network, prompt = build(config_of(max_length=12, position="learned")).eval(), [5, 6, 7]
    plain = greedy(network, Batch(inputs=torch.tensor([prompt])), 10)[0]  # the tenth is read from a full context
    slid = list(slide(network, prompt, 12, Sampler(40, ())))
    assert slid[:10] == plain and len(slid) == 40
    window = (prompt + slid)[6:13]  # when 12 are full, the last 6 of them and the new one go on
    with torch.no_grad():
        assert slid[10] == network(Batch(inputs=torch.tensor([window]))).logits[0, -1].argmax()
    ends = [list(slide(network, list(range(begin, 30)), 12, Sampler(3, ()))) for begin in (0, 18)]
    assert ends[0] == ends[1]


# --- conversations


@pytest.mark.parametrize("how", [{}, {"repetition_penalty": 1.5, "presence_penalty": 0.5, "no_repeat_ngram": 3}])
def test_a_conversation_says_what_model_chat_says_turn_by_turn(how):
    model, messages = model_of(max_length=200), []
    talk = model.conversation(system="be kind", max_new_tokens=12, processor=LogitsProcessor(**how))
    for text in ("hello", "and you?"):
        messages.append({"role": "user", "content": text})
        answer = "".join(talk.ask(text)).strip()
        alone = model.chat([{"role": "system", "content": "be kind"}, *messages], max_new_tokens=12, **how)
        assert answer == alone
        messages.append({"role": "assistant", "content": answer})
    assert talk.messages == [{"role": "system", "content": "be kind"}, *messages]


def test_the_oldest_turns_are_forgotten_and_the_system_message_never():
    talk = model_of().conversation(system="sys", max_new_tokens=8)
    for number in range(12):
        list(talk.ask(f"message {number}"))
        prompt = talk.tokenizer.decode(talk.cache.known[0], special=True)
        assert prompt.startswith("<s>s:sys</s>") and f"message {number}" in prompt
        assert len(talk.cache.known[0]) <= 96
    assert talk.n_dropped > 0 and talk.n_dropped % 2 == 0 and len(talk.turns) == 24
    assert "message 0" not in prompt
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "sys"}] and talk.n_dropped == 0


def test_a_message_that_never_fits_is_refused_and_not_kept():
    talk = model_of().conversation(max_new_tokens=500)
    assert talk.max_new_tokens == 48  # half of the context
    list(talk.ask("hello"))
    with pytest.raises(QkvError, match="48 are for the answer: shorten it"):
        list(talk.ask("long " * 30))
    assert [m["role"] for m in talk.turns] == ["user", "assistant"]


def test_an_answer_that_is_broken_off_is_kept_as_far_as_it_went():
    talk = model_of(eos_id=None).conversation(max_new_tokens=20)
    answer = talk.ask("hello")
    said = [next(answer), next(answer)]
    answer.close()
    assert talk.turns[-1] == {"role": "assistant", "content": "".join(said).strip()}
    assert "".join(talk.ask("go on"))


def test_who_cannot_talk_says_so():
    with pytest.raises(QkvError, match="no chat template"):
        model_of(template=None).conversation()
    with pytest.raises(QkvError, match="needs a decoder"):
        Conversation(
            ModelConfig(family="encoder", head="none", vocab_size=5, d_model=4, n_layers=1, d_ff=4),
            None,
            tokenizer_of(),
        )


# --- the command


def test_chat_answers_each_line_of_a_pipe(run, folder):
    code, out, err = run("chat", folder, "--max-new-tokens", "8", given="hello\n\nthere\n")
    talk = qkv.load(folder).conversation(max_new_tokens=8)
    assert (code, err) == (0, "")
    assert out == "".join("".join(talk.ask(text)) + "\n" for text in ("hello", "there"))


def test_chat_commands_and_transcript(run, folder):
    lines = ["forget me", "/reset", "/system be kind", "hello", "/what", "/exit", "never read"]
    code, out, err = run("chat", folder, "--json", "--max-new-tokens", "8", given="\n".join(lines) + "\n")
    found = json.loads(out)
    assert code == 0 and [m["role"] for m in found["messages"]] == ["system", "user", "assistant"]
    assert found["messages"][:2] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    assert "conversation reset" in err and "system message set" in err and "unknown command /what" in err


def test_chat_draws_the_same_with_the_same_seed(run, folder):
    how = ("--temperature", "2", "--max-new-tokens", "20")
    texts = [run("chat", folder, *how, "--seed", seed, given="hello\nthere\n")[1] for seed in "112"]
    assert texts[0] == texts[1] != texts[2]


def test_chat_says_what_is_dropped_and_goes_on_after_a_message_that_does_not_fit(run, folder):
    lines = [f"a message of some length {n}" for n in range(4)] + ["x" * 300, "hello"]
    code, out, err = run("chat", folder, "--max-new-tokens", "4", given="\n".join(lines))
    assert code == 1 and "dropped the first 2 messages" in err and "not answered: this message takes" in err
    assert len(qkv.load(folder).tokenizer.plain([out])[0]) >= 5


def test_chat_counts_one_dropped_message_in_the_singular(capsys):
    class Talk:
        n_dropped = 0

        def ask(self, text):
            self.n_dropped = 1
            yield "yes"

    assert turn(Talk(), "hello", quiet=True) and capsys.readouterr().err.endswith("dropped the first 1 message\n")


def test_ctrl_c_stops_an_answer_and_not_the_conversation(run, folder, monkeypatch):
    calls, original = [], ContinuousBatch.step

    def interrupted(self):
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(ContinuousBatch, "step", interrupted)
    code, out, err = run("chat", folder, "--json", "--max-new-tokens", "6", given="hello\nthere\n")
    found = json.loads(out)["messages"]
    assert code == 0 and "(stopped)" in err and len(found) == 4


def test_typed_messages_have_a_mark_and_ctrl_d_leaves(run, folder, monkeypatch):
    typed = iter(["hello", KeyboardInterrupt(), "/exit"])

    def entered(mark):
        assert mark == "> "
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    stdin = io.StringIO()
    stdin.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr("builtins.input", entered)
    code, _, err = run("chat", folder, "--max-new-tokens", "4")
    assert code == 0 and "/reset" in err
    monkeypatch.setattr("builtins.input", lambda mark: (_ for _ in ()).throw(EOFError))
    assert run("chat", folder)[0] == 0


def test_chat_without_a_template_is_an_error(run, tmp_path):
    model_of(template=None).save(tmp_path / "m")
    code, out, err = run("chat", tmp_path / "m", given="hello\n")
    assert code == 2 and out == "" and "no chat template" in err and err.count("\n") == 1


# --- qkv generate


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    place = tmp_path_factory.mktemp("bounded") / "model"
    model_of(position="learned", max_length=16, eos_id=None).save(place)
    return place


def test_a_prompt_longer_than_the_context_is_an_error_or_loses_its_beginning(run, bounded, folder):
    long = "abcdefghijklmnopqrstuvwxyz"
    code, out, err = run("generate", bounded, long)
    assert code == 2 and "26 tokens" in err and "16" in err and "shorten" in err
    code, out, err = run("generate", bounded, long, "--truncate", "--max-new-tokens", "4", "--json")
    found = json.loads(out)
    assert (
        code == 0
        and found["prompt_tokens"] == 12
        and found["text"] == "".join(qkv.load(bounded).generate(long[-12:], max_new_tokens=4))
    )
    found = json.loads(run("generate", bounded, long, "--truncate", "--max-new-tokens", "400", "--json")[1])
    assert found["prompt_tokens"] == 8 and found["ended"] == "context"  # half of it stays for the prompt
    code, _, err = run("generate", folder, "x" * 97)
    assert code == 2 and "97 tokens" in err and "the model's context is 96" in err and "--truncate" in err
    assert json.loads(run("generate", bounded, "ab", "--truncate", "--json")[1])["prompt_tokens"] == 2


def test_a_bounded_model_stops_where_its_context_ends_and_says_so(run, bounded):
    code, out, err = run("generate", bounded, "abcd", "--max-new-tokens", "50", "--json")
    found = json.loads(out)
    assert (code, found["tokens"], found["ended"]) == (0, 13, "context")
    assert "context of 16 tokens is full" in err and "--slide" in err
    code, out, err = run("generate", bounded, "abcd", "--max-new-tokens", "50", "--json", "--slide")
    longer = json.loads(out)
    assert (longer["tokens"], longer["ended"], err) == (50, "length", "")
    assert longer["text"].startswith(found["text"].rstrip("\ufffd"))


def test_several_texts_are_those_of_several_seeds(run, bounded):
    how = ("--temperature", "1", "--max-new-tokens", "5", "--json")
    together = [
        json.loads(line) for line in run("generate", bounded, "ab", "--n", "3", "--seed", "7", *how)[1].splitlines()
    ]
    alone = [json.loads(run("generate", bounded, "ab", "--seed", str(seed), *how)[1]) for seed in (7, 8, 9)]
    assert together == alone and len({one["text"] for one in together}) > 1
    plain = run("generate", bounded, "ab", "--n", "2", "--seed", "7", *how[:-1])[1]
    assert plain == "\n---\n".join(one["text"] for one in alone[:2]) + "\n"
    code, _, err = run("generate", bounded, "ab", "--n", "2")
    assert code == 2 and "all texts are the same" in err


def test_sampling_slides_with_its_own_stream(run, bounded):
    model, how = qkv.load(bounded), SamplingParams(1.0)
    one = list(model.tokens([5, 6], 30, how, 3, slide=True))
    assert (
        one == list(model.tokens([5, 6], 30, how, 3, slide=True)) != list(model.tokens([5, 6], 30, how, 4, slide=True))
    )
    assert one[:5] == list(model.tokens([5, 6], 5, how, 3))


# --- templates are programs from outside


HELLO = [{"role": "user", "content": "hello"}]
DOUBLING = "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    ["{{ 'a' * 10**10 }}", "{{ '%10000000000d' % 1 }}", "{{ 'a'.center(10**10) }}", DOUBLING, "{{ [1] * 10**10 }}"],
)
def test_a_template_that_takes_memory_is_stopped(template):
    with pytest.raises(QkvError, match=r"the chat template takes more than .*500 MB"):
        render(template, HELLO, {})
    assert render("{{ messages[0].content }}", HELLO, {}) == "hello"


def test_a_template_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr("qkv.text.renderer.SECONDS", 0.2)
    with pytest.raises(QkvError, match="takes more than"):
        render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", HELLO, {})
    monkeypatch.setattr("qkv.text.renderer.SECONDS", 60.0)
    assert render("{{ messages[0].content }}", HELLO, {}) == "hello"


def test_templates_of_several_threads_do_not_mix():
    def answer(number):
        return render("{{ messages[0].content }}", [{"role": "user", "content": str(number)}], {})

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, range(100))) == [str(number) for number in range(100)]


@pytest.mark.parametrize(
    ("template", "words"),
    [("{{ raise_exception('no system role') }}", "refuses these messages: no system role"), ("{{ x.y.z }}", "'x' is undefined"),
     ("{% if %}", "fails on these messages"), ("{{ 'a' * 20_000_000 }}", "writes more than"),
     ("{{ ''.__class__.__mro__ }}", "fails on these messages"),
     ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion")],
)  # fmt: skip
def test_a_template_that_fails_says_why_in_one_line(template, words):
    with pytest.raises(QkvError, match=words) as caught:
        render(template, HELLO, {})
    assert "\n" not in str(caught.value)
