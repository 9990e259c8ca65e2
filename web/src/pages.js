// Every page: {path, page, nav, role}. `page` is a component that gets the parts of its path (":id")
// as properties; those with `nav` are linked in the header under that word, for who has the role.
import { Overview } from "./pages/overview.jsx";

export const pages = [{ path: "/", page: Overview, nav: "Overview" }];
