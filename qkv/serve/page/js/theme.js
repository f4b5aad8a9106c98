// Light or dark before the first paint, so that nothing flashes. Not a module: it runs while the head is read.
{
  const kept = localStorage.getItem("qkv-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}
