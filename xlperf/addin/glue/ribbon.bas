' --- the tab of the ribbon

Public Sub XlperfWrite(ByVal Control As IRibbonControl)
    If CanWrite() Then WriteBlock BlockOf(Control.Tag)
End Sub

Public Sub XlperfCheck(ByVal Control As IRibbonControl)
    Dim Answer As Variant
    If Not CanWrite() Then Exit Sub
    If TypeName(Selection) <> "Range" Then
        Inform "Select the cells of a plan first: two columns, name and value, or a table with its header row."
        Exit Sub
    End If
    If Selection.Areas.Count > 1 Then
        Inform "Select one block of cells."
        Exit Sub
    End If
    Answer = Computed("XLPERF_CHECK", Array(CellsOf(Selection), Empty, Empty, Empty, Empty))
    Inform LinesOf(Answer)
End Sub

Public Sub XlperfReport(ByVal Control As IRibbonControl)
    ' Python computes the saved file and writes the report beside it
    Dim Answer As String
    If Not CanWrite() Then Exit Sub
    If ActiveWorkbook.Path = "" Or LCase$(Left$(ActiveWorkbook.FullName, 4)) = "http" Then
        Inform "Save the workbook on this computer first: the report is written beside it."
        Exit Sub
    End If
    If Not ActiveWorkbook.Saved Then ActiveWorkbook.Save
    Application.StatusBar = "xlperf computes the report ..."
    Answer = Asked("report", ActiveWorkbook.FullName)
    Application.StatusBar = False
    OpenOrInform Answer, False
End Sub

Public Sub XlperfGuide(ByVal Control As IRibbonControl)
    OpenOrInform Asked("guide", ""), True
End Sub

Public Sub XlperfUpdate(ByVal Control As IRibbonControl)
    Inform Asked("update", ADDIN_VERSION)
End Sub

Private Sub OpenOrInform(ByVal Answer As String, ByVal ReadOnly As Boolean)
    If LCase$(Right$(Answer, 5)) = ".xlsx" And InStr(Answer, vbLf) = 0 Then
        Workbooks.Open Answer, 0, ReadOnly
    Else
        Inform Answer
    End If
End Sub

Private Function Asked(ByVal Task As String, ByVal Given As String) As String
    On Error GoTo Failed
    Connect
    Asked = LinesOf(AsCells(Python.CallUDF("SERVER_MODULE", "addin_task", Array(Task, Given), ThisWorkbook, ThisWorkbook.Worksheets(1).Range("A1"))))
    Exit Function
Failed:
    Set Python = Nothing
    Asked = "Python does not answer (" & Left$(Err.Description, 200) & "); run: xlperf install excel --check"
End Function

Private Function LinesOf(ByVal Given As Variant) As String
    ' The texts of a block of cells, a line each
    Dim Cell As Variant
    If Not IsArray(Given) Then
        If IsError(Given) Then LinesOf = "xlperf has no answer to that" Else LinesOf = Given
        Exit Function
    End If
    For Each Cell In Given
        If IsError(Cell) Then Cell = "xlperf has no answer to that"
        If LinesOf <> "" Then LinesOf = LinesOf & vbLf
        LinesOf = LinesOf & Cell
    Next Cell
End Function

Private Function CanWrite() As Boolean
    CanWrite = Not ActiveCell Is Nothing
    If Not CanWrite Then Inform "Open a workbook and choose a cell of a sheet first."
End Function

Private Sub Inform(ByVal Words As String)
    If Stale <> "" And InStr(Words, Stale) = 0 Then Words = Words & vbLf & vbLf & Stale
    MsgBox Left$(Words, 1000), vbInformation, "xlperf"
End Sub

Public Sub WriteBlock(ByVal Block As String)
    ' Writes labels, values and formulas from the cell of the cursor down
    Dim Lines As Variant, Parts As Variant, Place As Object, Row As Long, Wide As Double
    Lines = Split(Block, "|")
    Set Place = ActiveCell
    If Application.WorksheetFunction.CountA(Place.Resize(UBound(Lines) + 1, 2)) > 0 Then
        Inform "The block needs " & UBound(Lines) + 1 & " rows of two empty cells from the cursor down: choose another cell."
        Exit Sub
    End If
    For Row = 0 To UBound(Lines)
        Wide = Application.WorksheetFunction.Max(Wide, Len(Split(Lines(Row), "~")(1)))
    Next Row
    If Place.ColumnWidth < Wide Then Place.ColumnWidth = Wide
    For Row = 0 To UBound(Lines)
        Parts = Split(Lines(Row), "~")
        If Parts(0) <> "block" Then Place.Offset(Row, 0).Value = Parts(1)
        Select Case Parts(0)
            Case "title"
                Place.Offset(Row, 0).Font.Bold = True
            Case "number"
                Place.Offset(Row, 1).Value = Val(Parts(2))
            Case "text"
                Place.Offset(Row, 1).Value = Parts(2)
            Case "result"
                WriteFormula Place.Offset(Row, 1), Parts(2)
            Case "block"
                WriteFormula Place.Offset(Row, 0), Parts(2)
        End Select
    Next Row
End Sub

Private Sub WriteFormula(ByVal Place As Object, ByVal Formula As String)
    ' A block of results spills where Excel can do that
    Dim Fault As Long
    On Error Resume Next
    Place.Formula2R1C1 = Formula
    Fault = Err.Number
    On Error GoTo 0
    If Fault <> 0 Then Place.FormulaR1C1 = Formula
End Sub
