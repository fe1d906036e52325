/** URLs that the browser itself requests: pictures and downloads. */

export const fileThumbnail = (id: string) => `/v1/files/${id}/thumbnail`;
export const fileContent = (id: string) => `/v1/files/${id}/content`;
