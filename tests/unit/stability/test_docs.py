import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "stability.md"


def test_the_examples_of_the_document_run():
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(examples) == 2
    exec(compile("\n".join(examples), str(DOCUMENT), "exec"), {"__name__": "example"})
