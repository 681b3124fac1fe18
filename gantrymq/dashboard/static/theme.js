// The chosen colors, before the page is painted.
const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
