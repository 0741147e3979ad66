// Before anything is painted: the choice of an earlier visit, or else the system's.
{
  let kept = null;
  try {
    kept = localStorage.getItem("longthink-theme");
  } catch {
    // a browser that stores nothing follows the system
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}
