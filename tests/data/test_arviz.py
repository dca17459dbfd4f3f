"""ArviZ is imported when it is needed, in several processes at once too."""

import builtins

from jaxcoreset.data import arviz


def test_a_file_that_another_process_has_renamed_does_not_end_a_build(monkeypatch):
    failures, real = [], builtins.__import__

    def fail_once(name, *args, **kwargs):
        if name == "arviz" and not failures:
            failures.append(name)
            raise FileNotFoundError("daily_warning.tmp")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fail_once)
    assert hasattr(arviz._arviz(), "from_dict")
    assert failures == ["arviz"]
