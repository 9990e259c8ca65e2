// Every page: {path, page, nav}. `page` is a component that gets the parts of its path (":id") as
// properties; those with `nav` are linked in the header under that word.
import { Overview } from "./pages/overview.jsx";

export const pages = [{ path: "/", page: Overview, nav: "Overview" }];
