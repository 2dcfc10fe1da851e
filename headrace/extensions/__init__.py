"""Extensions: each whole in its folder, imported by name when a configuration asks for it."""
