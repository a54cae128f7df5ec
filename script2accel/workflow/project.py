"""From a script on disk to the results of its project: what may be read, and how the files are named to the user."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from script2accel.errors import SourceError
from script2accel.notebook import Notebook
from script2accel.options import Options
from script2accel.result import Outcome, Result
from script2accel.workflow.discover import NOTEBOOK, SKIPPED, problem
from script2accel.workflow.files import File, read

MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
MAIN = re.compile(rb"^if __name__ *==", re.MULTILINE)  # a script that a user starts
MOST_STARTERS = 8  # scripts that are asked about a module which they import
ALREADY = "S2A010"
MOST_FILES = 2000  # Python files of a project that are looked through for callers


@dataclass
class Project:
    """A folder, and the files of it that were read."""

    root: str
    files: dict[str, File | None] = field(default_factory=dict)
    books: dict[str, Notebook | SourceError] = field(default_factory=dict)

    @classmethod
    def around(cls, target: str) -> Project:
        """The project that a script belongs to: the nearest folder above with a mark of one, else the script's own folder."""
        at = folder = os.path.dirname(os.path.realpath(target))
        while not any(os.path.lexists(os.path.join(at, mark)) for mark in MARKS):
            above = os.path.dirname(at)
            if above == at:
                return cls(folder)
            at = above
        return cls(at)

    def name(self, target: str) -> str:
        """A file's path from the root, with forward slashes."""
        return os.path.relpath(os.path.realpath(target), self.root).replace(os.sep, "/")

    def read(self, name: str) -> bytes | None:
        """The bytes of a file of the project, a notebook's cells as a script, or None: outside of it, no regular file, in a folder of libraries."""
        if name not in self.files:
            self.files[name] = self._read(name)
        file = self.files[name]
        if file is None or not name.endswith(NOTEBOOK):
            return file.data if file is not None else None
        book = self._book(name, file)
        return book.joined.encode("utf-8", "surrogatepass") if isinstance(book, Notebook) else None

    def _book(self, name: str, file: File) -> Notebook | SourceError:
        """A notebook of the project, read once."""
        if name not in self.books:
            try:
                self.books[name] = Notebook.read(file.data, name)
            except SourceError as error:
                self.books[name] = error
        return self.books[name]

    def _read(self, name: str) -> File | None:
        path = os.path.join(self.root, *name.split("/"))
        inside = os.path.realpath(path).startswith(self.root.rstrip(os.sep) + os.sep)
        if not inside or SKIPPED & set(name.split("/")) or problem(path):
            return None
        try:
            return read(path)
        except SourceError:
            return None

    def others(self) -> Iterator[str]:
        """The names of the project's Python files and notebooks."""
        count = 0
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.startswith("."))
            for name in sorted(names):
                if name.endswith((".py", NOTEBOOK)):
                    count += 1
                    if count > MOST_FILES:
                        return
                    yield self.name(os.path.join(folder, name))

    def _shown(self, result: Result, path: str) -> Result:
        """A result under the name that the user knows, its diagnostics under those of their files."""
        said = []
        for found in result.diagnostics:
            held = self.files.get(found.path)
            other = os.path.relpath(held.target) if held is not None and found.path != result.path else path
            said.append(found.in_file(other))
        return replace(result, path=path, diagnostics=tuple(said))

    def convert(self, file: File, options: Options) -> list[tuple[File, Result]]:
        """Convert a script with what it imports: every file concerned with its result, the script itself first."""
        from script2accel.workflow.convert import convert_project
        from script2accel.workflow.notebook import unreadable

        entry = self.name(file.target)
        self.files[entry] = file
        text = self.read(entry)
        if text is None:  # a notebook that can't be read
            book = self._book(entry, file)
            assert isinstance(book, SourceError)
            return [(file, unreadable(file.data, file.path, book))]
        results = convert_project({entry: text}, options, self.read, self.others)
        if results[0].outcome in (Outcome.REFUSED, Outcome.PARTIAL):
            results = self._started(entry, options) or results
        found = []
        for result in self._in_cells(results):
            held = self.files.get(result.path)
            shown = file if result.path == entry else held
            if shown is not None:
                shown = shown if shown is file else replace(shown, path=os.path.relpath(shown.target))
                found.append((shown, self._shown(result, shown.path)))
        return sorted(found, key=lambda pair: pair[0] is not file)

    def _started(self, module: str, options: Options) -> list[Result]:
        """What comes of a module that can't be judged alone by way of a script that imports it; nothing where none does or none trains."""
        from script2accel.workflow.callers import starters
        from script2accel.workflow.convert import convert_project

        text = self.read(module)
        if text is None or MAIN.search(text):
            return []
        for script in starters(module, self.read, list(self.others()))[:MOST_STARTERS]:
            results = convert_project({script: self.read(script) or b""}, options, self.read, self.others)
            if results[0].outcome in (Outcome.NOT_TRAINING, Outcome.ERROR):
                continue
            own = [result for result in results if result.path == module]
            if results[0].outcome is Outcome.READY or (ALREADY in {d.id for d in results[0].diagnostics} and not own):
                return own or [Result(module, Outcome.READY, text, text)]
            return results if own else [Result(module, Outcome.READY, text, text), *results]
        return []

    def _in_cells(self, results: list[Result]) -> list[Result]:
        """The results with those of notebooks put back into their cells; where one can't be, nothing is written."""
        from script2accel.workflow.notebook import in_cells

        found = []
        changed = {result.path for result in results if result.changed}
        for result in results:
            book, file = self.books.get(result.path), self.files.get(result.path)
            found.append(in_cells(book, result, file.data, changed) if isinstance(book, Notebook) and file is not None else result)
        if not any(old.changed and new.outcome is Outcome.REFUSED for old, new in zip(results, found, strict=True)):
            return found
        return [replace(result, outcome=Outcome.REFUSED, after=result.before, changes=(), facts=(), plan=None) for result in found]
