"""HTTP APIs: LibreTranslate's, OpenAI's, the native one, and inspection of models."""
