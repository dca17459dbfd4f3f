"""What the programs that a report offers do before they sample, and whether they are whole."""


def prepared(programs):
    """The names in the NumPyro program once it has read its file."""
    namespace = {}
    exec(programs["Python, with NumPyro"].partition("import jax\n")[0], namespace)
    return namespace


def compiled(programs):
    """The programs in Python, each of which compiles."""
    found = {tool: text for tool, text in programs.items() if tool.startswith("Python")}
    for tool, text in found.items():
        compile(text, tool, "exec")
    return found
