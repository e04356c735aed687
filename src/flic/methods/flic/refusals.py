"""What FLIC refuses before it starts: settings that anchors cannot have."""

from flic.errors import ConfigError
from flic.method_settings import MethodSettings


def refuse_trimmed_barycentre(settings: MethodSettings) -> None:
    """Refuse to trim what is no mean of numbers."""
    is_whole = settings.anchors.average_covariance == "barycentre"
    if settings.training.average == "trimmed" and is_whole:
        raise ConfigError(
            "training.average is 'trimmed' and anchors.average_covariance is 'barycentre', which "
            "counts every covariance whole; expected 'factors'. Change one of them."
        )


def refuse_class_settings(settings: MethodSettings) -> None:
    """Refuse what has a meaning for anchors of classes only."""
    found = {
        "anchors.covariance": (settings.anchors.covariance, "identity"),
        "anchors.learn": (settings.anchors.learn, "after"),
        "alignment.target": (settings.alignment.target, "closed-form"),
    }
    for key, (got, expected) in found.items():
        if got != expected:
            raise ConfigError(
                f"{key} is {got!r} on data with real responses; expected {expected!r}, since "
                "regression anchors are N(y a + (1 − y) b, I). Change the key, or a preset "
                "such as 'authors' that sets it."
            )
    if settings.anchors.meta_classes is not None:
        raise ConfigError(
            "anchors.meta_classes is set on data with real responses; expected classes, which a "
            "regression does not have. Leave the key out."
        )


def refuse_impossible_meta_classes(settings: MethodSettings, num_classes: int) -> None:
    """Refuse meta-classes that do not fit the classes, or cannot tell them apart."""
    given, num = settings.anchors.meta_classes, settings.anchors.num_meta
    if isinstance(given, tuple) and len(given) != num_classes:
        raise ConfigError(
            f"anchors.meta_classes lists {len(given)} meta-classes on data with {num_classes} "
            "classes; expected one for each class, in the order of the classes."
        )
    if num is not None and num > num_classes:
        raise ConfigError(
            f"anchors.meta_classes is {num} on data with {num_classes} classes; expected at most "
            "as many. Leave the key out to give every class an anchor of its own."
        )
    by_anchor = settings.model.predict_by == "nearest-anchor"
    if num is not None and num < num_classes and by_anchor:
        raise ConfigError(
            f"model.predict_by is 'nearest-anchor' with {num} anchors for {num_classes} classes; "
            "expected 'head', since classes of one meta-class have one anchor. Set "
            "model.predict_by = 'head', also over the preset 'recommended'."
        )
