"""A problem that takes a moment."""

NOISY = {
    "problem": "noisy-features",
    "num_clients": 4,
    "num_classes": 3,
    "classes_per_client": 2,
    "train_rows_per_class": 40,
    "test_rows_per_class": 10,
}
