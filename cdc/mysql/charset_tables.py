"""The characters of single-byte and double-byte charsets, as the servers convert them.

Every entry was read from MySQL 9.7 and compared with MariaDB 10.11 (they agree for each code that both accept). An
integration test compares all entries again. "?" is the servers' result for a code without a Unicode character.
"""

from __future__ import annotations

# charset -> characters of bytes 0x80 to 0xff; the bytes below are ASCII
UPPER_HALVES = {
    "armscii8": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0\u2741\xa7\u0589)(\xbb\xab\u2014.\u055d,-\u055f\u2026\u055c\u055b\u055eԱաԲբԳգԴդԵեԶզԷէ"
        "ԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշ"
        "ՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ\u2019'"
    ),
    "ascii": "?" * 128,
    "cp1250": (
        "\u20ac?\u201a?\u201e\u2026\u2020\u2021?\u2030Š\u2039ŚŤŽŹ?\u2018\u2019\u201c\u201d\u2022\u2013\u2014?\u2122š\u203aśťžź"
        "\xa0ˇ\u02d8Ł\xa4Ą\xa6\xa7\xa8\xa9Ş\xab\xac\xad\xaeŻ\xb0\xb1\u02dbł\xb4µ\xb6\xb7\xb8ąş\xbbĽ\u02ddľż"
        "ŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ\xd7ŘŮÚŰÜÝŢß"
        "ŕáâăäĺćçčéęëěíîďđńňóôőö\xf7řůúűüýţ\u02d9"
    ),
    "cp1251": (
        "ЂЃ\u201aѓ\u201e\u2026\u2020\u2021\u20ac\u2030Љ\u2039ЊЌЋЏђ\u2018\u2019\u201c\u201d\u2022\u2013\u2014?\u2122љ\u203aњќћџ"
        "\xa0ЎўЈ\xa4Ґ\xa6\xa7Ё\xa9Є\xab\xac\xad\xaeЇ\xb0\xb1Ііґµ\xb6\xb7ё\u2116є\xbbјЅѕї"
        "АБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯ"
        "абвгдежзийклмнопрстуфхцчшщъыьэюя"
    ),
    "cp1256": (
        "\u20ac\u067e\u201aƒ\u201e\u2026\u2020\u2021ˆ\u2030?\u2039Œ\u0686\u0698?"
        "\u06af\u2018\u2019\u201c\u201d\u2022\u2013\u2014?\u2122?\u203aœ\u200c\u200d?"
        "\xa0\u060c\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9?\xab\xac\xad\xae\xaf"
        "\xb0\xb1\xb2\xb3\xb4µ\xb6\xb7\xb8\xb9\u061b\xbb\xbc\xbd\xbe\u061f"
        "?\u0621\u0622\u0623\u0624\u0625\u0626\u0627\u0628\u0629\u062a\u062b\u062c\u062d\u062e\u062f"
        "\u0630\u0631\u0632\u0633\u0634\u0635\u0636\xd7\u0637\u0638\u0639\u063a\u0640\u0641\u0642\u0643"
        "à\u0644â\u0645\u0646\u0647\u0648çèéêë\u0649\u064aîï"
        "\u064b\u064c\u064d\u064eô\u064f\u0650\xf7\u0651ù\u0652ûü\u200e\u200f?"
    ),
    "cp1257": (
        "\u20ac?\u201a?\u201e\u2026\u2020\u2021?\u2030?\u2039?\xa8ˇ\xb8?\u2018\u2019\u201c\u201d\u2022\u2013\u2014?\u2122?\u203a?\xaf\u02db?"
        "\xa0?\xa2\xa3\xa4?\xa6\xa7Ø\xa9Ŗ\xab\xac\xad\xaeÆ\xb0\xb1\xb2\xb3\xb4µ\xb6\xb7ø\xb9ŗ\xbb\xbc\xbd\xbeæ"
        "ĄĮĀĆÄÅĘĒČÉŹĖĢĶĪĻŠŃŅÓŌÕÖ\xd7ŲŁŚŪÜŻŽß"
        "ąįāćäåęēčéźėģķīļšńņóōõö\xf7ųłśūüżž\u02d9"
    ),
    "cp850": (
        "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜø\xa3Ø\xd7ƒ"
        "áíóúñÑªº\xbf\xae\xac\xbd\xbc\xa1\xab\xbb\u2591\u2592\u2593\u2502\u2524ÁÂÀ\xa9\u2563\u2551\u2557\u255d\xa2\xa5\u2510"
        "\u2514\u2534\u252c\u251c\u2500\u253cãÃ\u255a\u2554\u2569\u2566\u2560\u2550\u256c\xa4ðÐÊËÈıÍÎÏ\u2518\u250c\u2588\u2584\xa6Ì\u2580"
        "ÓßÔÒõÕµþÞÚÛÙýÝ\xaf\xb4\xad\xb1\u2017\xbe\xb6\xa7\xf7\xb8\xb0\xa8\xb7\xb9\xb3\xb2\u25a0\xa0"
    ),
    "cp852": (
        "ÇüéâäůćçłëŐőîŹÄĆÉĹĺôöĽľŚśÖÜŤťŁ\xd7č"
        "áíóúĄąŽžĘę\xacźČş\xab\xbb\u2591\u2592\u2593\u2502\u2524ÁÂĚŞ\u2563\u2551\u2557\u255dŻż\u2510"
        "\u2514\u2534\u252c\u251c\u2500\u253cĂă\u255a\u2554\u2569\u2566\u2560\u2550\u256c\xa4đĐĎËďŇÍÎě\u2518\u250c\u2588\u2584ŢŮ\u2580"
        "ÓßÔŃńňŠšŔÚŕŰýÝţ\xb4\xad\u02dd\u02dbˇ\u02d8\xa7\xf7\xb8\xb0\xa8\u02d9űŘř\u25a0\xa0"
    ),
    "cp866": (
        "АБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯ"
        "абвгдежзийклмноп\u2591\u2592\u2593\u2502\u2524\u2561\u2562\u2556\u2555\u2563\u2551\u2557\u255d\u255c\u255b\u2510"
        "\u2514\u2534\u252c\u251c\u2500\u253c\u255e\u255f\u255a\u2554\u2569\u2566\u2560\u2550\u256c\u2567\u2568\u2564\u2565\u2559\u2558\u2552\u2553\u256b\u256a\u2518\u250c\u2588\u2584\u258c\u2590\u2580"
        "рстуфхцчшщъыьэюяЁёЄєЇїЎў\xb0\u2219\xb7\u221aⁿ\xb2\u25a0\xa0"
    ),
    "dec8": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0\xa1\xa2\xa3?\xa5?\xa7\xa4\xa9ª\xab????\xb0\xb1\xb2\xb3?µ\xb6\xb7?\xb9º\xbb\xbc\xbd?\xbf"
        "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ?ÑÒÓÔÕÖŒØÙÚÛÜŸ?ß"
        "àáâãäåæçèéêëìíîï?ñòóôõöœøùúûüÿ??"
    ),
    "geostd8": (
        "\u20ac?\u201a?\u201e\u2026\u2020\u2021?\u2030?\u2039?????\u2018\u2019\u201c\u201d\u2022\u2013\u2014???\u203a????"
        "\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9ª\xab\xac\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4µ\xb6\xb7\xb8\xb9º\xbb\xbc\xbd\xbe\xbf"
        "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწ"
        "ჭხჴჯჰჵ???????????????????????\u2116??"
    ),
    "greek": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0ʽʼ\xa3??\xa6\xa7\xa8\xa9?\xab\xac\xad?\u2015\xb0\xb1\xb2\xb3\u0384\u0385Ά\xb7ΈΉΊ\xbbΌ\xbdΎΏ"
        "ΐΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡ?ΣΤΥΦΧΨΩΪΫάέήί"
        "ΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώ?"
    ),
    "hebrew": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f"
        "\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0?\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xd7\xab\xac\xad\xae\u203e"
        "\xb0\xb1\xb2\xb3\xb4µ\xb6\xb7\xb8\xb9\xf7\xbb\xbc\xbd\xbe?"
        "????????????????"
        "???????????????\u2017"
        "\u05d0\u05d1\u05d2\u05d3\u05d4\u05d5\u05d6\u05d7\u05d8\u05d9\u05da\u05db\u05dc\u05dd\u05de\u05df"
        "\u05e0\u05e1\u05e2\u05e3\u05e4\u05e5\u05e6\u05e7\u05e8\u05e9\u05ea??\u200e\u200f?"
    ),
    "hp8": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0ÀÂÈÊËÎÏ\xb4ˋˆ\xa8\u02dcÙÛ\u20a4\xafÝý\xb0ÇçÑñ\xa1\xbf\xa4\xa3\xa5\xa7ƒ\xa2"
        "âêôûáéóúàèòùäëöüÅîØÆåíøæÄìÖÜÉïßÔ"
        "ÁÃãÐðÍÌÓÒÕõŠšÚŸÿÞþ\xb7µ\xb6\xbe\u2014\xbc\xbdªº\xab\u25a0\xbb\xb1?"
    ),
    "keybcs2": (
        "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘť"
        "áíóúňŇŮÔšřŕŔ\xbc\xa1\xab\xbb\u2591\u2592\u2593\u2502\u2524\u2561\u2562\u2556\u2555\u2563\u2551\u2557\u255d\u255c\u255b\u2510"
        "\u2514\u2534\u252c\u251c\u2500\u253c\u255e\u255f\u255a\u2554\u2569\u2566\u2560\u2550\u256c\u2567\u2568\u2564\u2565\u2559\u2558\u2552\u2553\u256b\u256a\u2518\u250c\u2588\u2584\u258c\u2590\u2580"
        "αßΓπΣσµτΦΘΩδ\u221eφε\u2229\u2261\xb1\u2265\u2264\u2320\u2321\xf7\u2248\xb0\u2219\xb7\u221aⁿ\xb2\u25a0\xa0"
    ),
    "koi8r": (
        "\u2500\u2502\u250c\u2510\u2514\u2518\u251c\u2524\u252c\u2534\u253c\u2580\u2584\u2588\u258c\u2590\u2591\u2592\u2593\u2320\u25a0\u2219\u221a\u2248\u2264\u2265\xa0\u2321\xb0\xb2\xb7\xf7"
        "\u2550\u2551\u2552ё\u2553\u2554\u2555\u2556\u2557\u2558\u2559\u255a\u255b\u255c\u255d\u255e\u255f\u2560\u2561Ё\u2562\u2563\u2564\u2565\u2566\u2567\u2568\u2569\u256a\u256b\u256c\xa9"
        "юабцдефгхийклмнопярстужвьызшэщчъ"
        "ЮАБЦДЕФГХИЙКЛМНОПЯРСТУЖВЬЫЗШЭЩЧЪ"
    ),
    "koi8u": (
        "\u2500\u2502\u250c\u2510\u2514\u2518\u251c\u2524\u252c\u2534\u253c\u2580\u2584\u2588\u258c\u2590\u2591\u2592\u2593\u2320\u25a0\u2022\u221a\u2248\u2264\u2265\xa0\u2321\xb0\xb2\xb7\xf7"
        "\u2550\u2551\u2552ёє\u2554ії\u2557\u2558\u2559\u255a\u255bґ\u255d\u255e\u255f\u2560\u2561ЁЄ\u2563ІЇ\u2566\u2567\u2568\u2569\u256aҐ\u256c\xa9"
        "юабцдефгхийклмнопярстужвьызшэщчъ"
        "ЮАБЦДЕФГХИЙКЛМНОПЯРСТУЖВЬЫЗШЭЩЧЪ"
    ),
    "latin1": (
        "\u20ac\x81\u201aƒ\u201e\u2026\u2020\u2021ˆ\u2030Š\u2039Œ\x8dŽ\x8f\x90\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122š\u203aœ\x9džŸ"
        "\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9ª\xab\xac\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4µ\xb6\xb7\xb8\xb9º\xbb\xbc\xbd\xbe\xbf"
        "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ\xd7ØÙÚÛÜÝÞß"
        "àáâãäåæçèéêëìíîïðñòóôõö\xf7øùúûüýþÿ"
    ),
    "latin2": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0Ą\u02d8Ł\xa4ĽŚ\xa7\xa8ŠŞŤŹ\xadŽŻ\xb0ą\u02dbł\xb4ľśˇ\xb8šşťź\u02ddžż"
        "ŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ\xd7ŘŮÚŰÜÝŢß"
        "ŕáâăäĺćçčéęëěíîďđńňóôőö\xf7řůúűüýţ\u02d9"
    ),
    "latin5": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9ª\xab\xac\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4µ\xb6\xb7\xb8\xb9º\xbb\xbc\xbd\xbe\xbf"
        "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏĞÑÒÓÔÕÖ\xd7ØÙÚÛÜİŞß"
        "àáâãäåæçèéêëìíîïğñòóôõö\xf7øùúûüışÿ"
    ),
    "latin7": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\xa0\u201d\xa2\xa3\xa4\u201e\xa6\xa7Ø\xa9Ŗ\xab\xac\xad\xaeÆ\xb0\xb1\xb2\xb3\u201cµ\xb6\xb7ø\xb9ŗ\xbb\xbc\xbd\xbeæ"
        "ĄĮĀĆÄÅĘĒČÉŹĖĢĶĪĻŠŃŅÓŌÕÖ\xd7ŲŁŚŪÜŻŽß"
        "ąįāćäåęēčéźėģķīļšńņóōõö\xf7ųłśūüżž\u2019"
    ),
    "macce": (
        "ÄĀāÉĄÖÜáąČäčĆćéŹźĎíďĒēĖóėôöõúĚěü"
        "\u2020\xb0Ę\xa3\xa7\u2022\xb6ß\xae\xa9\u2122ę\xa8\u2260ģĮįĪ\u2264\u2265īĶ\u2202\u2211łĻļĽľĹĺŅ"
        "ņŃ\xac\u221ańŇ\u2206\xab\xbb\u2026\xa0ňŐÕőŌ\u2013\u2014\u201c\u201d\u2018\u2019\xf7\u25caōŔŕŘ\u2039\u203ařŖ"
        "ŗŠ\u201a\u201ešŚśÁŤťÍŽžŪÓÔūŮÚůŰűŲųÝýķŻŁżĢˇ"
    ),
    "macroman": (
        "ÄÅÇÉÑÖÜáàâäãåçéèêëíìîïñóòôöõúùûü"
        "\u2020\xb0\xa2\xa3\xa7\u2022\xb6ß\xae\xa9\u2122\xb4\xa8\u2260ÆØ\u221e\xb1\u2264\u2265\xa5µ\u2202\u2211\u220fπ\u222bªºΩæø"
        "\xbf\xa1\xac\u221aƒ\u2248\u2206\xab\xbb\u2026\xa0ÀÃÕŒœ\u2013\u2014\u201c\u201d\u2018\u2019\xf7\u25caÿŸ\u2044\u20ac\u2039\u203aﬁﬂ"
        "\u2021\xb7\u201a\u201e\u2030ÂÊÁËÈÍÎÏÌÓÔ\uf8ffÒÚÛÙıˆ\u02dc\xaf\u02d8\u02d9\u02da\xb8\u02dd\u02dbˇ"
    ),
    "swe7": "?" * 128,
    "tis620": (
        "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
        "\ufffdกขฃคฅฆงจฉชซฌญฎฏฐฑฒณดตถทธนบปผฝพฟ"
        "ภมยรฤลฦวศษสหฬอฮฯะ\u0e31าำ\u0e34\u0e35\u0e36\u0e37\u0e38\u0e39\u0e3a\ufffd\ufffd\ufffd\ufffd\u0e3f"
        "เแโใไๅๆ\u0e47\u0e48\u0e49\u0e4a\u0e4b\u0e4c\u0e4d\u0e4e\u0e4f\u0e50\u0e51\u0e52\u0e53\u0e54\u0e55\u0e56\u0e57\u0e58\u0e59\u0e5a\u0e5b\ufffd\ufffd\ufffd\ufffd"
    ),
}

# swe7 differs from ASCII below 0x80
SWE7 = {
    0x40: "É",
    0x5B: "Ä",
    0x5C: "Ö",
    0x5D: "Å",
    0x5E: "Ü",
    0x60: "é",
    0x7B: "ä",
    0x7C: "ö",
    0x7D: "å",
    0x7E: "ü",
    0x7F: "?",
}

# charset -> runs of codes for which the servers differ from Python's codec: first code, character, number of codes
CODEC_DIFFERENCES = {
    "big5": """
        a15a:fffd:1 a1c3:fffd:1 a1c5:fffd:1 a1fe:fffd:1 a240:fffd:1 a2cc:fffd:1 a2ce:fffd:1 f9d6:7881:1
        f9d7:92b9:1 f9d8:88cf:1 f9d9:58bb:1 f9da:6052:1 f9db:7ca7:1 f9dc:5afa:1
    """,
    "sjis": """
        815f:5c:1
    """,
    "ujis": """
        a1c0:5c:1 f5a1:e000:5e f6a1:e05e:5e f7a1:e0bc:5e f8a1:e11a:5e f9a1:e178:5e faa1:e1d6:5e fba1:e234:5e
        fca1:e292:5e fda1:e2f0:5e fea1:e34e:5e 8ff5a1:e3ac:5e 8ff6a1:e40a:5e 8ff7a1:e468:5e 8ff8a1:e4c6:5e
        8ff9a1:e524:5e 8ffaa1:e582:5e 8ffba1:e5e0:5e 8ffca1:e63e:5e 8ffda1:e69c:5e 8ffea1:e6fa:5e
    """,
    "eucjpms": """
        a1c1:ff5e:1 a1c2:2225:1 a1dd:ff0d:1 a1f1:ffe0:2 a2cc:ffe2:1 ada1:2460:14 adb5:2160:a adc0:3349:1
        adc1:3314:1 adc2:3322:1 adc3:334d:1 adc4:3318:1 adc5:3327:1 adc6:3303:1 adc7:3336:1 adc8:3351:1
        adc9:3357:1 adca:330d:1 adcb:3326:1 adcc:3323:1 adcd:332b:1 adce:334a:1 adcf:333b:1 add0:339c:3
        add3:338e:2 add5:33c4:1 add6:33a1:1 addf:337b:1 ade0:301d:1 ade1:301f:1 ade2:2116:1 ade3:33cd:1
        ade4:2121:1 ade5:32a4:5 adea:3231:2 adec:3239:1 aded:337e:1 adee:337d:1 adef:337c:1 adf0:2252:1
        adf1:2261:1 adf2:222b:1 adf3:222e:1 adf4:2211:1 adf5:221a:1 adf6:22a5:1 adf7:2220:1 adf8:221f:1
        adf9:22bf:1 adfa:2235:1 adfb:2229:2 f5a1:e000:5e f6a1:e05e:5e f7a1:e0bc:5e f8a1:e11a:5e f9a1:e178:5e
        faa1:e1d6:5e fba1:e234:5e fca1:e292:5e fda1:e2f0:5e fea1:e34e:5e 8fa2b7:ff5e:1 8fa2c3:ffe4:1
        8ff3f3:2170:a 8ff3fd:2160:2 8ff4a1:2162:8 8ff4a9:ff07:1 8ff4aa:ff02:1 8ff4ab:3231:1 8ff4ac:2116:1
        8ff4ad:2121:1 8ff4ae:70bb:1 8ff4af:4efc:1 8ff4b0:50f4:1 8ff4b1:51ec:1 8ff4b2:5307:1 8ff4b3:5324:1
        8ff4b4:fa0e:1 8ff4b5:548a:1 8ff4b6:5759:1 8ff4b7:fa0f:2 8ff4b9:589e:1 8ff4ba:5bec:1 8ff4bb:5cf5:1
        8ff4bc:5d53:1 8ff4bd:fa11:1 8ff4be:5fb7:1 8ff4bf:6085:1 8ff4c0:6120:1 8ff4c1:654e:1 8ff4c2:663b:1
        8ff4c3:6665:1 8ff4c4:fa12:1 8ff4c5:f929:1 8ff4c6:6801:1 8ff4c7:fa13:2 8ff4c9:6a6b:1 8ff4ca:6ae2:1
        8ff4cb:6df8:1 8ff4cc:6df2:1 8ff4cd:7028:1 8ff4ce:fa15:2 8ff4d0:7501:1 8ff4d1:7682:1 8ff4d2:769e:1
        8ff4d3:fa17:1 8ff4d4:7930:1 8ff4d5:fa18:4 8ff4d9:7ae7:1 8ff4da:fa1c:2 8ff4dc:7da0:1 8ff4dd:7dd6:1
        8ff4de:fa1e:1 8ff4df:8362:1 8ff4e0:fa1f:1 8ff4e1:85b0:1 8ff4e2:fa20:2 8ff4e4:8807:1 8ff4e5:fa22:1
        8ff4e6:8b7f:1 8ff4e7:8cf4:1 8ff4e8:8d76:1 8ff4e9:fa23:3 8ff4ec:90de:1 8ff4ed:fa26:1 8ff4ee:9115:1
        8ff4ef:fa27:2 8ff4f1:9592:1 8ff4f2:f9dc:1 8ff4f3:fa29:1 8ff4f4:973b:1 8ff4f5:974d:1 8ff4f6:9751:1
        8ff4f7:fa2a:3 8ff4fa:999e:1 8ff4fb:9ad9:1 8ff4fc:9b72:1 8ff4fd:fa2d:1 8ff4fe:9ed1:1 8ff5a1:e3ac:5e
        8ff6a1:e40a:5e 8ff7a1:e468:5e 8ff8a1:e4c6:5e 8ff9a1:e524:5e 8ffaa1:e582:5e 8ffba1:e5e0:5e 8ffca1:e63e:5e
        8ffda1:e69c:5e 8ffea1:e6fa:5e
    """,
    "gb18030": """
        a8bc:1e3f:1 8135f437:e7c7:1
    """,
}
