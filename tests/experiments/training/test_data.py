"""Corpus to token ids: separators, bytes of tokens, archive and folder alike, cache."""

import tarfile
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from experiments.training.data import load_corpus, read_documents, token_bytes
from specdec.errors import WorkloadError


def test_every_document_stands_behind_a_separator_and_loses_nothing(trainer_config, corpus, tmp_path):
    settings = trainer_config().data
    loaded = load_corpus(settings, tmp_path / "cache.npz", seed=0)
    tokenizer = Tokenizer.from_file(settings.tokenizer)
    pieces = np.split(loaded.train, np.flatnonzero(loaded.train == loaded.separator))
    texts = {tokenizer.decode(piece[1:].tolist()) for piece in pieces if len(piece) > 1}
    assert texts == {doc for part, _, docs in read_documents(corpus, 0) if part == "train" for doc in docs}
    assert loaded.train[0] == loaded.train[-1] == loaded.separator
    assert [ids[0] for ids in loaded.heldout] == [loaded.separator] * 3
    assert loaded.heldout_names == ("c.txt",) * 3


def test_token_bytes_add_up_to_the_text(trainer_config, corpus, tmp_path):
    loaded = load_corpus(trainer_config().data, tmp_path / "cache.npz", seed=0)
    documents = [doc for part, _, docs in read_documents(corpus, 0) if part == "heldout" for doc in docs]
    assert [int(loaded.token_bytes[ids].sum()) for ids in loaded.heldout] == [len(d.encode()) for d in documents]


def test_token_bytes_of_special_tokens_are_zero(tokenizer_file):
    assert token_bytes(Tokenizer.from_file(str(tokenizer_file)))[:3].tolist() == [0, 0, 0]


def test_archive_cache_and_worker_processes_give_the_same_tokens(trainer_config, corpus, tmp_path):
    settings = trainer_config().data
    with tarfile.open(tmp_path / "corpus.tar.xz", "w:xz") as archive:
        archive.add(corpus / "train", "corpus/train")
        archive.add(corpus / "heldout", "corpus/heldout")
    packed = replace(settings, corpus=str(tmp_path / "corpus.tar.xz"), workers=2)
    expected = load_corpus(settings, tmp_path / "a.npz", seed=3)
    first = load_corpus(packed, tmp_path / "b.npz", seed=3)
    again = load_corpus(packed, tmp_path / "b.npz", seed=3)
    other = load_corpus(packed, tmp_path / "b.npz", seed=4)
    assert np.array_equal(first.train, expected.train) and np.array_equal(again.train, expected.train)
    assert len(other.train) == len(expected.train) and not np.array_equal(other.train, expected.train)


def test_missing_corpus_and_unknown_separator_are_named(trainer_config, tmp_path):
    settings = trainer_config().data
    with pytest.raises(WorkloadError, match="nowhere"):
        load_corpus(replace(settings, corpus=str(tmp_path / "nowhere.tar")), tmp_path / "x.npz", seed=0)
    with pytest.raises(WorkloadError, match="no token"):
        load_corpus(replace(settings, separator="<|none|>"), tmp_path / "x.npz", seed=0)
