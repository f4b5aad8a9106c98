// Apply the stored theme before the first paint to avoid a flash. Not a module: it runs while the head is parsed.
{
  const stored = localStorage.getItem("qkv-theme");
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
}
