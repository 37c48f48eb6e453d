"""What can be wrong with a chat template."""

from __future__ import annotations

from ggufcluster.errors.root import GgufClusterError


class TemplateError(GgufClusterError):
    """A chat template is missing or does not render."""

    def __init__(self, reason: str, *, path: str) -> None:
        super().__init__(f"chat template {path}: {reason}")
        self.reason = reason
        self.path = path


class TemplateMissingError(TemplateError):
    """The model brings no chat template, or not the one that was named."""


class TemplateFamilyError(TemplateError):
    """The style is made for another family of templates; ``family`` is what was found."""

    def __init__(self, family: str, *, path: str) -> None:
        super().__init__(f"is of {family}; the style is made for MiniMax-M3's own", path=path)
        self.family = family


class TemplateAnchorError(TemplateError):
    """A place that the style replaces is not there exactly once; ``excerpt`` shows what is."""

    def __init__(self, place: str, *, reason: str, excerpt: tuple[str, ...], path: str) -> None:
        super().__init__(f"the place {place!r} {reason}: the template has changed there", path=path)
        self.place = place
        self.excerpt = excerpt


class TemplateRenderError(TemplateError):
    """A template fails for some conversation; ``conversation`` names it."""

    def __init__(self, conversation: str, *, reason: str, path: str) -> None:
        super().__init__(f"fails for the conversation {conversation!r}: {reason}", path=path)
        self.conversation = conversation


class TemplateMismatchError(TemplateError):
    """llama-server's own renderer disagrees; ``excerpt`` shows the first difference."""

    def __init__(self, conversation: str, *, excerpt: tuple[str, ...], path: str) -> None:
        reason = f"llama-server renders the conversation {conversation!r} differently"
        super().__init__(reason, path=path)
        self.conversation = conversation
        self.excerpt = excerpt
